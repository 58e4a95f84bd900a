"""Finds the bundled model in the package and checks that its files are complete and unchanged.

`bundled.json` beside its files records the size and the SHA-256 of each: {"config.json": {"bytes": 1034, "sha256":
"..."}, ...}; those of its drafter are named "assistant/...". `record_bundled_model` writes it after a model was put
there. Knows no format of any of the files.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError

NAME = "facet"  # what it is served as
FOLDER = Path(__file__).parent / "bundled"
RECORD = "bundled.json"

_WHAT_TO_DO = "Install facet-llm again, or name a model: a folder, or a name on the hub (owner/name)."


def find_bundled_model(folder: Path | None = None) -> Path:
    """The folder of the bundled model, once every file of it has been found as it was recorded.

    `folder` is another place than the package, for tests and for building the model.
    """
    folder = FOLDER if folder is None else folder
    if not folder.is_dir():
        raise CheckpointError(f"No model was named, and the bundled one is missing: no {folder}. {_WHAT_TO_DO}")
    for name, expected in _read_record(folder / RECORD).items():
        if fault := _fault(folder / name, expected):
            raise _damaged(f"{folder / name} {fault}")
    return folder


def record_bundled_model(folder: Path) -> Path:
    """Records the files that are in `folder` now and returns the file written. Call it last."""
    files = (path for path in folder.rglob("*") if path.is_file())
    names = sorted(name for file in files if (name := file.relative_to(folder).as_posix()) != RECORD)
    entries = {name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in names}
    record = folder / RECORD
    record.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    return record


def _read_record(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise _damaged(f"{path} cannot be read: {error}") from None
    if not isinstance(entries, dict) or not entries:
        raise _damaged(f"{path} lists no files")
    return entries


def _fault(path: Path, expected: Any) -> str | None:
    try:
        num_bytes, digest = expected["bytes"], expected["sha256"]
    except (KeyError, TypeError):
        return f"is not described in {RECORD}"
    try:
        if path.stat().st_size != num_bytes:
            return f"has {path.stat().st_size:,} bytes instead of {num_bytes:,}"
        return None if _sha256(path) == digest else "has been changed: its SHA-256 differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(f"The bundled model is damaged: {what}. {_WHAT_TO_DO}")
