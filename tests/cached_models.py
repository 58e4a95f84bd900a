"""Writes models into a Hugging Face cache, as a download leaves them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


def write_cached_model(cache: Path, name: str, files: Mapping[str, str | bytes]) -> Path:
    """Returns the folder of the only revision."""
    folder = cache / f"models--{name.replace('/', '--')}"
    commit = hashlib.sha1(name.encode()).hexdigest()
    snapshot = folder / "snapshots" / commit
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    snapshot.mkdir(parents=True)
    for number, (file, content) in enumerate(files.items()):
        blob = folder / "blobs" / f"{number:040x}"
        blob.write_bytes(content if isinstance(content, bytes) else content.encode())
        (snapshot / file).symlink_to(blob)
    return snapshot
