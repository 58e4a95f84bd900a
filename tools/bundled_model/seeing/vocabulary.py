"""Makes room for pictures in a vocabulary: its last words give their ids to the tokens around and in place of them.

The last words learned are the rarest and part of no other, so a text that has them is written with two tokens instead
of one, and all other ids stay what they are: weights trained with the old vocabulary go on with the new one.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

BEGIN, SOFT, END, FRAME = "<|image>", "<|image|>", "<image|>", "<|video|>"
PICTURE_TOKENS = (BEGIN, SOFT, END, FRAME)


def with_picture_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same vocabulary size. A tokenizer that has them is returned as it is."""
    if tokenizer.token_to_id(SOFT) is not None:
        return tokenizer
    state = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    dropped = words[-len(PICTURE_TOKENS) :]
    merges = [tuple(merge) for merge in state["model"]["merges"] if "".join(merge) not in dropped]
    assert len(merges) == len(state["model"]["merges"]) - len(dropped), "every dropped word is one merge"
    assert not any(part in dropped for merge in merges for part in merge), "no other word is made of them"
    for word, token in zip(dropped, PICTURE_TOKENS, strict=True):
        vocabulary[token] = vocabulary.pop(word)
    state["model"]["merges"] = merges
    made = tokenizers.Tokenizer.from_str(json.dumps(state))
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in PICTURE_TOKENS])
    return made


def token_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None, f"a tokenizer without {token} cannot write pictures"
    return found


def write_with_picture_tokens(file: Path, folder: Path) -> Path:
    """The tokenizer in `file`, with tokens for pictures, as a file in `folder`."""
    made = folder / "tokenizer.json"
    with_picture_tokens(tokenizers.Tokenizer.from_file(str(file))).save(str(made))
    return made
