"""Finds where the text of each token begins in the text of its sequence."""

import codecs

from facet.tokens.detokenizer import Detokenizer
from facet.tokens.tokenizer import Tokenizer, is_byte_token


class TextOffsets:
    """The state of one sequence, whose text is what `Detokenizer` makes of it.

    Offsets never decrease. A token of whole characters stands in the text at its offset; the bytes of one character
    have that character's; a token that is not shown has the offset of what follows it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._skipped_ids: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._num_chars = 0  # of which the text is certain
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars_of_bytes = 0  # that the byte tokens behind these have completed, as far as one can know

    @property
    def end(self) -> int:
        """Where a token that follows begins."""
        return self._num_chars + self._num_chars_of_bytes

    def push(self, token_id: int) -> int:
        """The offset of the next token."""
        end = self.end
        if text := self._detokenizer.push(token_id):
            self._num_chars += len(text)
            self._bytes.reset()
            self._num_chars_of_bytes = 0
            # The text of tokens before may have become certain with it; its own is at the end.
            return max(end, self._num_chars - len(self._tokenizer.decode_continuation([token_id])))
        token = self._tokenizer.id_to_token(token_id)
        if token is not None and token_id not in self._skipped_ids and is_byte_token(token):
            self._num_chars_of_bytes += len(self._bytes.decode(bytes([int(token[3:5], 16)])))
        return end
