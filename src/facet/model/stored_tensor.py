"""What the header of a weight file says about one tensor."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies, its shape, and its type as safetensors names it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
