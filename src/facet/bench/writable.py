"""Finds out before a run whether its files can be written: afterwards the run would be lost."""

import tempfile
from pathlib import Path

from facet.errors import ConfigError


def check_writable(flag: str, path: Path, *, makes_folder: bool = False) -> None:
    """Refuses a file that cannot be written. `flag`: what named it. `makes_folder`: its folder need not exist yet."""
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()  # changes nothing
        else:
            tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        where = path if path.exists() else path.parent
        raise ConfigError(
            f"{flag}: {where} cannot be written to: {error.strerror}. Name a file in a folder that you may write to."
        ) from None
