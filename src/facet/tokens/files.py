"""Reads the small JSON files beside a checkpoint's weights. Knows nothing of what they mean."""

import json
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json; empty where a checkpoint has no such file."""
    path = folder / "tokenizer_config.json"
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}. Download the file again.") from error
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path} holds a JSON {type(contents).__name__}, not an object. Download the file again.")
    return contents


def one_line(error: Exception) -> str:
    """An error's words on a single line, without a final full stop, to stand inside a sentence."""
    return " ".join(str(error).split()).rstrip(".")
