"""Decodes the token ids of one sequence into text, part by part, as they are sampled.

The parts put together are exactly `Tokenizer.decode` of the whole sequence, except that the sequence may end in the
middle of a character: that half is left out. A part is handed out as soon as no later token can change it.

Almost every token has a text of its own, whatever follows. Two kinds do not, and are held until their run
ends: byte tokens, because a run is decoded as a whole (one byte that is not valid UTF-8 spoils the characters
before it in the same run), and, in other kinds of vocabularies, tokens that begin or end inside a character.
A held token is decoded with its run and never again, so the cost is linear in the length of the sequence.
"""

import codecs

from facet.tokens.tokenizer import Tokenizer, is_byte_token

# What a decoder writes for bytes that are not, or not yet, a character.
_REPLACEMENT_CHARACTER = "\ufffd"
_MOST_BYTES_OF_HALF = 3  # of a character that lacks its end, in UTF-8


class Detokenizer:
    """The decoding state of one sequence."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._held_ids: list[int] = []
        self._has_text = False  # until there is some, a decoder may still drop the space that opens a text

    def push(self, token_id: int) -> str:
        """Takes the next token and returns the text that is now certain, often this token's own."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._skipped_ids:
            return ""
        if is_byte_token(token):
            self._held_ids.append(token_id)
            return ""
        own_text = self._tokenizer.decode_continuation([token_id])
        if _REPLACEMENT_CHARACTER in own_text:
            self._held_ids.append(token_id)
            return ""
        if self._has_text and not self._held_ids:
            return own_text
        self._held_ids.append(token_id)
        return self._release()

    def finish(self) -> str:
        """The rest, once the sequence has ended. Bytes that are no character show as U+FFFD; half a one is left out."""
        if self._held_ids and _REPLACEMENT_CHARACTER in self._tokenizer.decode_continuation(self._held_ids):
            self._drop_half_character()
        return self._release() if self._held_ids else ""

    def _drop_half_character(self) -> None:
        """Forgets the byte tokens at the end that begin a character and do not complete it."""
        found = b""
        for token_id in reversed(self._held_ids[-_MOST_BYTES_OF_HALF:]):
            token = self._tokenizer.id_to_token(token_id) or ""
            if not is_byte_token(token):
                break
            found = bytes([int(token[3:5], 16)]) + found
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        decoder.decode(found)
        if half := decoder.getstate()[0]:
            del self._held_ids[-len(half) :]

    def _release(self) -> str:
        if self._has_text:
            text = self._tokenizer.decode_continuation(self._held_ids)
        else:
            text = self._tokenizer.decode(self._held_ids, skip_special_tokens=False)
            if not text:
                return ""  # still at the start: the next token is decoded together with these
            self._has_text = True
        self._held_ids.clear()
        return text
