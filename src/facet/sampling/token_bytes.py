"""Reads the bytes that each token id stands for, which grammars need. Everything else about text is in the room tokens.

Gemma's vocabulary writes spaces as "▁" and single bytes as "<0x0A>".
"""

import re
from pathlib import Path

from facet.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Told by their spelling too: not every checkpoint marks all of its control tokens as special.
_CONTROL_TOKEN = re.compile(r"<\|[^<>]*>|<[^<>]*\|>|<unused\d+>|\[multimodal\]")


def read_token_bytes(folder: Path, vocab_size: int) -> list[bytes]:
    """By token id, for `vocab_size` ids. Empty: a place in the vocabulary that no token has."""
    import tokenizers  # here: an engine whose requests use no grammar does not load it

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json, and grammars are matched against its tokens.")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    spelled = [b""] * vocab_size
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id < vocab_size:
            is_control = token_id in special or _CONTROL_TOKEN.fullmatch(token)
            spelled[token_id] = _of_control_token(token_id) if is_control else _of_text(token)
    return spelled


def _of_control_token(token_id: int) -> bytes:
    """Bytes that are no UTF-8: no text of a grammar matches them, and only the token's id can name it."""
    return b"\xff" + str(token_id).encode()


def _of_text(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()
