"""Chooses the GGUF file that holds a model, among the files of a folder or of a repository on the hub."""

import re
from collections.abc import Iterable, Sequence

from facet.errors import CheckpointError

_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf")


def model_files(names: Iterable[str]) -> list[str]:
    """Those that hold a language model or the first part of one: no vision, no later parts."""
    return sorted(
        name
        for name in names
        if name.endswith(".gguf")
        and "mmproj" not in name.rpartition("/")[2].lower()
        and not _LATER_PART.fullmatch(name)
    )


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
