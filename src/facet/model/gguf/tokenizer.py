"""Makes tokenizer.json of a GGUF file's metadata: BPE with byte fallback, as Gemma's tokenizers are.

Files of Gemma 4 have the merges. Files of Gemma 3 and 3n have a score for each token instead, as sentencepiece keeps
them: a pair may be merged if the result is a token, and the one with the highest score is merged first.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from facet.errors import CheckpointError
from facet.marker_spelling import FUNCTION_MARKER
from facet.model.config_fields import ConfigFields, shown

_MODELS = ("llama", "gemma4", "gpt2")  # of tokenizers, whose tokens and merges mean the same in files of Gemma
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
# Gemma 4's and FunctionGemma's; files call some of them ordinary so that they are shown.
_MARKER = re.compile(rf"<\|\S+>|<\S+\|>|{FUNCTION_MARKER}")
_SPACE = "▁"
_ROLES = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_USUAL_UNKNOWN = "<unk>"
_MOVED_SPACE = chr(256 + ord(" "))


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """A file without one still serves token ids."""
    return any(name.startswith("tokenizer.") for name in metadata)


def make_tokenizer(metadata: Mapping[str, Any], where: str) -> dict[str, Any] | str:
    """The contents of tokenizer.json, parsed, or, where the file has them, as they are."""
    whole = metadata.get("tokenizer.huggingface.json")
    if isinstance(whole, str):
        return whole
    fields = ConfigFields(metadata, where)
    model = fields.text("tokenizer.ggml.model", "none")
    if model not in _MODELS:
        raise CheckpointError(f"{where}: tokenizer.ggml.model is {shown(model)}; Facet knows {', '.join(_MODELS)}.")
    tokens = _list(fields, "tokenizer.ggml.tokens", str)
    types = _list(fields, "tokenizer.ggml.token_type", int, len(tokens), default=_NORMAL)
    # Runs of spaces among the added tokens are written out; everywhere else a space is "▁".
    spells_spaces = any(_SPACE in token for token in tokens)
    if spells_spaces:
        tokens = [
            token.replace(" ", _SPACE) if type == _USER_DEFINED else token
            for token, type in zip(tokens, types, strict=True)
        ]
    vocabulary: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocabulary.setdefault(token, token_id)
    if "tokenizer.ggml.merges" in fields:
        merges = [_pair(merge, vocabulary, where) for merge in _list(fields, "tokenizer.ggml.merges", str)]
    else:
        scores = _list(fields, "tokenizer.ggml.scores", float, len(tokens))
        merges = merges_from_scores(tokens, scores, types, vocabulary)
    # Files say that markers are normal where tokenizer_config.json did not name them. No merge ends in one.
    markers = {token for token in tokens if _MARKER.fullmatch(token)}
    unnamed = markers - {left + right for left, right in merges}
    added = [
        _added_token(token_id, token, is_special=type != _USER_DEFINED or token in markers)
        for token_id, (token, type) in enumerate(zip(tokens, types, strict=True))
        if (type in (_UNKNOWN, _CONTROL, _USER_DEFINED) or token in unnamed) and vocabulary[token] == token_id
    ]
    special = special_tokens(metadata)
    unknown = special.get("unk_token", _USUAL_UNKNOWN)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    no_spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [no_spaces] * spells_spaces + [{"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": spaces if spells_spaces else None,
        "pre_tokenizer": None,
        "post_processor": _post_processor(fields, special.get("bos_token"), vocabulary),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown if unknown in vocabulary else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in merges],
        },
    }


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of tokens that have a role, by the names of tokenizer_config.json."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    found = {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for name, role in _ROLES.items()}
    if not isinstance(tokens, list):
        return {}
    return {
        role: tokens[token_id]
        for role, token_id in found.items()
        if isinstance(token_id, int) and 0 <= token_id < len(tokens)
    }


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every pair of tokens that together are a token, the best first. Tokens added by a user come before all others:
    their scores were lost when the file was written."""
    ranked = [
        (0 if type == _USER_DEFINED else 1, -score, token_id)
        for token_id, (score, type) in enumerate(zip(scores, types, strict=True))
        if type in (_NORMAL, _USER_DEFINED)
    ]
    merges: list[tuple[str, str]] = []
    for _, _, token_id in sorted(ranked):
        token = tokens[token_id]
        if vocabulary[token] != token_id:
            continue
        splits = ((token[:end], token[end:]) for end in range(1, len(token)))
        pairs = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return merges


def _pair(merge: str, vocabulary: Mapping[str, int], where: str) -> tuple[str, str]:
    """The two tokens of a merge, written with a space between. Spaces inside of tokens are written as they are, or 256
    places further on."""
    for space in re.finditer(" ", merge):
        pair = merge[: space.start()], merge[space.end() :]
        for left, right in (pair, tuple(part.replace(_MOVED_SPACE, " ") for part in pair)):
            if left in vocabulary and right in vocabulary and left + right in vocabulary:
                return left, right
    raise CheckpointError(f"{where}: tokenizer.ggml.merges has {shown(merge)}, which does not join two tokens.")


def _added_token(token_id: int, token: str, *, is_special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": token, **flags, "special": is_special}


def _post_processor(fields: ConfigFields, bos: str | None, vocabulary: Mapping[str, int]) -> dict[str, Any] | None:
    if bos is None or not fields.boolean("tokenizer.ggml.add_bos_token", True):
        return None
    text = {"Sequence": {"id": "A", "type_id": 0}}
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": bos, "type_id": 1}}, second],
        "special_tokens": {bos: {"id": bos, "ids": [vocabulary[bos]], "tokens": [bos]}},
    }


def _list(fields: ConfigFields, name: str, kind: type, length: int | None = None, default: Any = None) -> list[Any]:
    """An array of metadata whose entries are all of one kind; `length`: of the vocabulary."""
    value = fields.raw(name)
    if value is None and default is not None and length is not None:
        return [default] * length
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) for item in value):
        raise fields.wrong(name, f"an array of {kind.__name__}")
    if length is not None and len(value) != length:
        raise CheckpointError(f"{name} has {len(value)} entries, but there are {length} tokens.")
    return value
