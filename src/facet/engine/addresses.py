"""Names the sockets of an engine, in a folder that only its user can open."""

from pathlib import Path

TO_ENGINE, FROM_ENGINE = "in", "out"


def address(folder: Path, name: str) -> str:
    return f"ipc://{folder / name}"


def steps_of(rank: int) -> str:
    """Where a rank gets the steps that rank 0 plans."""
    return f"steps-{rank}"
