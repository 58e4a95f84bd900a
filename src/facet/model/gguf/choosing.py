"""Chooses the GGUF files that hold a model and its towers, among those of a folder or of a repository on the hub."""

import re
from collections.abc import Iterable, Sequence

from facet.errors import CheckpointError

_TOWERS = "mmproj"
# In which types towers are published, the best one first: they are small, and computed in bfloat16.
_TYPES_OF_TOWERS = ("bf16", "f16", "f32", "q8_0")
_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf")


def model_files(names: Iterable[str]) -> list[str]:
    """The files that hold a language model or the first part of one: no vision, no later parts."""
    return sorted(
        name for name in names if name.endswith(".gguf") and not _holds_towers(name) and not _LATER_PART.fullmatch(name)
    )


def tower_files(names: Iterable[str]) -> list[str]:
    """The files that hold towers for pictures and sound, the ones to be preferred first."""

    def rank(name: str) -> tuple[int, str]:
        words = re.split(r"[^a-z0-9_]+", name.rpartition("/")[2].lower())
        return next((i for i, type in enumerate(_TYPES_OF_TOWERS) if type in words), len(_TYPES_OF_TOWERS)), name

    return sorted((name for name in names if name.endswith(".gguf") and _holds_towers(name)), key=rank)


def _holds_towers(name: str) -> bool:
    return _TOWERS in name.rpartition("/")[2].lower()


def choose_file(names: Sequence[str], wanted: str | None, where: str) -> str:
    """The one file, or the one that is `wanted`: a file's name, or a quantization such as Q4_0."""
    found = list(names)
    if wanted is not None:
        exact = [name for name in names if name in (wanted, f"{wanted}.gguf")]
        word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
        found = exact or [name for name in names if word.search(name.removesuffix(".gguf"))]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    if wanted is not None and not found:
        raise CheckpointError(f"{where} has no GGUF file {wanted!r}. It has {shown or 'none'}.")
    raise CheckpointError(f"{where} has several GGUF files: {shown}. Name one of them.")
