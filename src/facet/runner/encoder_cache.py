"""Keeps the rows that towers made of media, by content: a second question about a picture runs no tower.

All the memory is taken at the start. Which contents are kept is decided by the scheduler (`scheduler/encoding.py`).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.layers.placement import Placement
from facet.transfer import arrays_on_device

Places = NDArray[np.int64]


class EncoderCache:
    """Up to `num_rows` rows; those of a content lie wherever there was room."""

    def __init__(self, num_rows: int, width: int, placement: Placement) -> None:
        self._memory = torch.empty(num_rows, width, dtype=placement.dtype, device=placement.device)
        self._free = np.arange(num_rows)
        self._places: dict[str, Places] = {}

    @property
    def num_bytes(self) -> int:
        return self._memory.nbytes

    def __contains__(self, content_key: str) -> bool:
        return content_key in self._places

    def places(self, content_key: str) -> Places:
        """Where the rows of a content are, in order."""
        return self._places[content_key]

    def read(self, places: Places) -> Tensor:
        """Rows of the cache, [num_places, width]."""
        (chosen,) = arrays_on_device((places,), self._memory.device)
        return self._memory[chosen]

    def add(self, content_key: str, rows: Tensor) -> None:
        """Copies the rows of a content, all of them, into the cache."""
        assert content_key not in self._places, "content is encoded once"
        assert len(rows) <= len(self._free), "there is room for what a plan encodes"
        places, self._free = np.split(self._free, [len(rows)])
        self._places[content_key] = places
        (chosen,) = arrays_on_device((places,), self._memory.device)
        self._memory[chosen] = rows

    def forget(self, content_key: str) -> None:
        self._free = np.append(self._places.pop(content_key), self._free)
