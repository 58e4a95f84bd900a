"""Encodes and decodes text with the checkpoint's own tokenizer.json.

One `Tokenizer` serves every thread of the process, without a lock and without copies. That works because
the Rust tokenizer underneath is only ever read. Sharing one fails ("Already borrowed") when a thread sets
truncation or padding on it while another encodes; here nothing sets them, and a text that must be cut is cut
after the call, on that call's own result.

Knows neither chat templates (the room chat) nor how text is decoded while it is generated (detokenizer.py).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import tokenizers

from facet.errors import CheckpointError, RequestError
from facet.tokens.control_tokens import ControlTokens
from facet.tokens.encoding import encode_texts
from facet.tokens.files import one_line, read_tokenizer_config
from facet.tokens.prompt_text import PromptText
from facet.tokens.text_length import CHARACTERS_PER_TOKEN, TextLength

# What Gemma calls its special tokens, for checkpoints without a tokenizer_config.json.
_USUAL_NAMES = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}

# How a byte-fallback vocabulary spells the token of one raw byte.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# Text that no decoder changes, wherever it stands: visible ASCII, no space.
_PLAIN_TEXT = re.compile(r"[!-~]+")

# Where a text is cut its tokens may be others than in the whole; so many behind the cut are encoded and thrown away.
_MARGIN_TOKENS = 256


class Tokenizer:
    """An immutable tokenizer that threads may share."""

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str] | None = None) -> None:
        """Takes over `backend`: nothing else may change it from here on.

        `special_tokens` maps a role to a token's text, as in {"bos_token": "<bos>"}.
        """
        # The only two writes, before any other thread can see the tokenizer.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        if special_tokens is None:
            special_tokens = {
                role: token for role, token in _USUAL_NAMES.items() if backend.token_to_id(token) is not None
            }
        self.special_tokens: Mapping[str, str] = MappingProxyType(dict(special_tokens))
        eos_token = self.special_tokens.get("eos_token")
        self.eos_id = None if eos_token is None else backend.token_to_id(eos_token)
        self.special_ids: frozenset[int] = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.control_tokens = ControlTokens(backend, self.special_tokens.values())
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._length = TextLength(backend)
        self.added_before, self.added_after = self._added_around()
        self._anchor_id = self._find_anchor()
        self._num_anchor_chars = len(self.decode([self._anchor_id], skip_special_tokens=False))

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Loads tokenizer.json, and the names in tokenizer_config.json, from a checkpoint's folder."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json. {_advice_for_missing_file(folder)}")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises bare Exception for every kind of broken file
            raise CheckpointError(
                f"{path} cannot be read as a tokenizer: {one_line(error)}. Download the file again."
            ) from error
        try:
            return cls(backend, _named_special_tokens(read_tokenizer_config(folder), backend, path))
        except _EmptyVocabularyError as error:
            raise CheckpointError(f"{path} has no token with visible text. Download the file again.") from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written out in it are recognised.

        `add_special_tokens` adds what the checkpoint asks for around a text (for Gemma 3, <bos>).
        """
        return self.encode_prompt(PromptText(text), add_special_tokens=add_special_tokens)

    def brings_special_tokens(self, text: str) -> bool:
        """Whether a text begins with the tokens that `encode` would add before it."""
        added = "".join(self.id_to_token(token_id) or "" for token_id in self.added_before)
        return bool(added) and text.startswith(added)

    def encode_prompt(
        self, prompt: PromptText, *, add_special_tokens: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a prompt, of which only the template's own text is read for control tokens.

        Of a prompt longer than `max_tokens` the end is kept; the added tokens count.
        """
        before, after = (self.added_before, self.added_after) if add_special_tokens else ([], [])
        if max_tokens is None:
            token_ids = self._encode_own(prompt)
        else:
            room = max_tokens - len(before) - len(after)
            if room < 0:
                raise RequestError(
                    f"Cutting to {max_tokens} tokens leaves no room for the {len(before) + len(after)} special tokens "
                    f"added to every text. Allow at least {len(before) + len(after)}, or add no special tokens."
                )
            token_ids = self._encode_end(prompt, room)
        return [*before, *token_ids, *after] if add_special_tokens else token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Ids past the vocabulary stand for no text and are left out."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def decode_continuation(self, token_ids: Sequence[int]) -> str:
        """The text these ids have when other text stands before them, special tokens included.

        Some tokenizers drop the space that opens a text, so a token can read differently at the very start.
        """
        anchored = self._backend.decode([self._anchor_id, *token_ids], skip_special_tokens=False)
        return anchored[self._num_anchor_chars :]

    def token_to_id(self, token: str) -> int | None:
        """The id of one token by its exact spelling in the vocabulary; None if there is no such token."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """A token's spelling in the vocabulary; None for an id past its end."""
        return self._backend.id_to_token(token_id)

    def max_characters(self, num_tokens: int) -> int | None:
        """The length of the longest text that may have so few tokens; None where there is no such bound."""
        return self._length.max_characters(num_tokens)

    def surely_exceeds(self, text: str, num_tokens: int) -> bool:
        """Whether a text has more tokens than that, in a time that does not depend on its length.

        False: it may fit, and `encode` takes no longer than the number of tokens makes reasonable.
        """
        return self._length.surely_exceeds(text, num_tokens)

    def _encode_end(self, prompt: PromptText, max_tokens: int) -> list[int]:
        """The last ids of a prompt. Of a long one only the end is encoded, with more before it than is kept."""
        num_characters = CHARACTERS_PER_TOKEN * (max_tokens + _MARGIN_TOKENS)
        while num_characters < len(prompt.text):
            token_ids = self._encode_own(prompt.last(num_characters))
            if len(token_ids) >= max_tokens + _MARGIN_TOKENS:
                break
            num_characters *= 4
        else:
            token_ids = self._encode_own(prompt)
        return token_ids[max(0, len(token_ids) - max_tokens) :]

    def _encode_own(self, prompt: PromptText) -> list[int]:
        """Ids of a prompt in which the control tokens of its `own_text` count and no others; see `PromptText`."""
        text, own_text = prompt.text, prompt.own_text
        if own_text is None:
            return encode_texts(self._backend, [text])[0]
        control = self.control_tokens
        places = control.find(own_text)
        written = [control.id_of[text[start:end]] for start, end in places]
        if places == control.find(text):
            token_ids = encode_texts(self._backend, [text])[0]
            if written == [token_id for token_id in token_ids if token_id in control.ids]:
                return token_ids  # as if nothing had come from outside
        ends = [0, *(end for _, end in places)]
        starts = [*(start for start, _ in places), len(text)]
        between = control.encode_as_text([text[end:start] for end, start in zip(ends, starts, strict=True)])
        token_ids = between[0]
        for control_id, text_ids in zip(written, between[1:], strict=True):
            token_ids += [control_id, *text_ids]
        return token_ids

    def _added_around(self) -> tuple[list[int], list[int]]:
        """The tokens a checkpoint adds before and after every text."""
        token_ids = self._backend.encode("a", add_special_tokens=False).ids
        framed = self._backend.encode("a", add_special_tokens=True)
        num_before = [*framed.special_tokens_mask, 0].index(0)
        return framed.ids[:num_before], framed.ids[num_before + len(token_ids) :]

    def _find_anchor(self) -> int:
        """A token with plain, visible text, to stand before others in `decode_continuation`."""
        for token_id in range(self.vocab_size):
            token = self._backend.id_to_token(token_id)
            text = self.decode([token_id], skip_special_tokens=False)
            if token is not None and not is_byte_token(token) and _PLAIN_TEXT.fullmatch(text):
                return token_id
        raise _EmptyVocabularyError


def is_byte_token(token: str) -> bool:
    """Whether this spelling is that of one raw byte, which may be a fraction of a character."""
    return _BYTE_TOKEN.fullmatch(token) is not None


class _EmptyVocabularyError(Exception):
    """No token of the vocabulary has visible text."""


def _named_special_tokens(
    config: Mapping[str, Any], backend: tokenizers.Tokenizer, path: Path
) -> Mapping[str, str] | None:
    """The `..._token` entries of tokenizer_config.json; None where it has none."""
    named: dict[str, str] = {}
    for role, entry in config.items():
        token = entry.get("content") if isinstance(entry, dict) else entry
        if not role.endswith("_token") or not isinstance(token, str):
            continue
        if backend.token_to_id(token) is None:
            raise CheckpointError(
                f"tokenizer_config.json names {token!r} as {role}, but {path} has no such token. "
                "Take both files from the same checkpoint."
            )
        named[role] = token
    return named or None


def _advice_for_missing_file(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            "It has a tokenizer.model, the older format, which Facet does not read. "
            "Take tokenizer.json from the model's page, or save the tokenizer once with transformers."
        )
    return "Download the tokenizer files together with the weights."
