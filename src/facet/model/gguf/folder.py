"""Makes the folder of a model of one GGUF file: config, tokenizer and template from its metadata, the weights linked.

A second file may hold its towers for pictures and sound.

Folders are kept in the user's cache, named after the place, size and time of writing of all files that were looked at,
so that this is done once.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError
from facet.model.config_fields import shown
from facet.model.gguf.config import architecture_of, make_config, make_generation_config
from facet.model.gguf.container import Gguf
from facet.model.gguf.tokenizer import has_tokenizer, make_tokenizer, special_tokens
from facet.model.gguf.tower_config import check_fit, fits, processor_config, with_towers

SUFFIX = ".gguf"
TOWERS = "mmproj.gguf"  # in a folder made here, the file of towers
_REVISION = 2  # of what is put into a folder; raise it when that changes
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def unfold(path: Path, towers: Path | None = None, *, beside: Sequence[Path] = ()) -> Path:
    """The folder of the model in this file, made if it is not there yet.

    `towers`: the file that holds them; None: the first of those `beside` that fits."""
    # Not where links lead: the hub keeps files under names without a suffix.
    files = _parts(path.absolute())
    candidates = [file.absolute() for file in (beside if towers is None else (towers,))]
    kind = "beside" if towers is None else "named"
    folder = _cache_folder() / f"{path.stem[:80]}-{_fingerprint([*files, *candidates], kind)}"
    if folder.is_dir():
        return folder
    opened = [Gguf(file) for file in files]
    architecture_of(opened[0])  # before anything else is looked for in it
    chosen = _first_fitting(opened, candidates) if towers is None else Gguf(candidates[0])
    linked = {file: file.name for file in files} | ({} if chosen is None else {chosen.path: TOWERS})
    contents = _contents(opened, chosen)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, text in contents.items():
            (made / name).write_text(text, encoding="utf-8")
        for file, name in linked.items():
            (made / name).symlink_to(file)
        try:
            made.rename(folder)  # whole or not at all, whoever else is at it
        except OSError:
            shutil.rmtree(made)
            if not folder.is_dir():
                raise
    except OSError as error:
        raise CheckpointError(
            f"{path} was not unfolded: {error.filename or folder.parent} cannot be written "
            f"({os.strerror(error.errno or 0)}). Name another folder for caches with XDG_CACHE_HOME."
        ) from None
    return folder


def is_unfolded(folder: Path) -> bool:
    return folder.parent == _cache_folder()


def _first_fitting(files: list[Gguf], candidates: Sequence[Path]) -> Gguf | None:
    """The first file whose towers make rows for this model."""
    if not candidates:
        return None
    config, family = make_config(files), architecture_of(files[0])
    for candidate in candidates:
        try:
            towers = Gguf(candidate)
        except CheckpointError:  # nobody asked for this file
            continue
        if fits(towers, config, family):
            return towers
    return None


def _contents(files: list[Gguf], towers: Gguf | None) -> dict[str, str]:
    """The contents of the folder's small files, by name."""
    first = files[0]
    family = architecture_of(first)
    objects: dict[str, Any] = {}
    if has_tokenizer(first.metadata):
        objects["tokenizer_config.json"] = special_tokens(first.metadata)
        objects["tokenizer.json"] = make_tokenizer(first.metadata, first.path.name)
    config = make_config(files)
    if towers is not None:
        check_fit(towers, config, family)
        config = with_towers(config, first, towers, family)
        objects["preprocessor_config.json"] = processor_config(towers)
    objects["config.json"] = config
    objects["generation_config.json"] = make_generation_config(first)
    contents = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
        for name, value in objects.items()
    }
    template = first.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        contents["chat_template.jinja"] = template
    return contents


def _parts(path: Path) -> list[Path]:
    """The file, or all files that it was split into."""
    named = _PART.fullmatch(path.name)
    if named is None:
        return [path]
    count = int(named[3])
    if not 1 <= count <= 1000 or int(named[2]) != 1:
        raise CheckpointError(
            f"{path} is one of {count} parts. Name the first one, {named[1]}-00001-of-{named[3]}.gguf."
        )
    parts = [path.with_name(f"{named[1]}-{index:05}-of-{named[3]}.gguf") for index in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path.parent} lacks {shown(missing)} of the {count} parts. Download them too.")
    return parts


def _fingerprint(files: Sequence[Path], kind: str) -> str:
    """A name that changes with the files, with what makes folders of them, and with `kind`: how their towers were
    chosen."""
    stats = [file.stat() for file in files]
    facts = [str(_REVISION), kind, *map(str, files), *(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "facet" / "gguf"
