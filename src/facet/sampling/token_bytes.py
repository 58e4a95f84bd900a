"""Reads the bytes that each token id stands for, which grammars need. Everything else about text is in the room tokens.

Gemma's vocabulary writes spaces as "▁" and single bytes as "<0x0A>".
"""

import re
from pathlib import Path

import msgspec

from facet.errors import CheckpointError
from facet.marker_spelling import FUNCTION_MARKER

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Told by their spelling too: not every checkpoint marks all of its control tokens as special.
_CONTROL_TOKEN = re.compile(rf"<\|[^<>]*>|<[^<>]*\|>|{FUNCTION_MARKER}|<unused\d+>|\[multimodal\]")
# What bytes of control tokens begin with: no UTF-8.
CONTROL = b"\xff"
_FIRST_OF_BOTH = "<["  # by far most tokens begin otherwise, and there are 262,144 of them


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int]


class _TokenizerFile(msgspec.Struct):
    """The part of a tokenizer.json that is needed here."""

    model: _Model
    added_tokens: list[_AddedToken] = []


def read_token_bytes(folder: Path, vocab_size: int) -> list[bytes]:
    """The bytes of each token, by token id, for `vocab_size` ids. Empty: a place in the vocabulary that no token
    has."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json, and grammars are matched against its tokens.")
    try:
        ids, special = _read(path)
    except msgspec.MsgspecError:
        ids, special = _ask_library(path)
    spelled = [b""] * vocab_size
    for token, token_id in ids.items():
        if token_id < vocab_size:
            is_control = token_id in special or (token[:1] in _FIRST_OF_BOTH and _CONTROL_TOKEN.fullmatch(token))
            spelled[token_id] = _of_control_token(token_id) if is_control else _of_text(token)
    return spelled


def _read(path: Path) -> tuple[dict[str, int], set[int]]:
    """The id of every token, and which are special: in a fifth of the time that the library takes to make a tokenizer,
    which a start would wait for."""
    file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    ids = file.model.vocab
    for token in file.added_tokens:
        ids.setdefault(token.content, token.id)
    return ids, {ids[token.content] for token in file.added_tokens if token.special}


def _ask_library(path: Path) -> tuple[dict[str, int], set[int]]:
    """Like `_read`, for a file that is written otherwise."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return tokenizer.get_vocab(with_added_tokens=True), special


def _of_control_token(token_id: int) -> bytes:
    """The bytes of a control token: no text of a grammar matches it, and only the token's id can name it."""
    return CONTROL + str(token_id).encode()


def _of_text(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token) if token[:1] in _FIRST_OF_BOTH else None
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()
