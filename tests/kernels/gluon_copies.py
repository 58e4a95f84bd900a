"""Copies to shared memory in groups (`cp.async`), for the emulator of Gluon."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Shared:
    """Tiles in shared memory. What a copy is on its way to holds other numbers until it is waited for."""

    numbers: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def index(self, index: int) -> "Shared":
        return Shared(self.numbers[index])

    def slice(self, start: int, length: int, dim: int) -> "Shared":
        return Shared(self.numbers.narrow(dim, start, length))

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.numbers.permute(*order))

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    def _reinterpret(self, dtype: torch.dtype, shape: Sequence[int], _layout: object) -> "Shared":
        assert dtype == self.numbers.dtype
        return Shared(self.numbers.view(*shape))

    def load(self, _layout: object) -> Tensor:
        return self.numbers.clone()

    def store(self, values: Tensor) -> None:
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        self.numbers.copy_(values)


@dataclass
class Copies:
    """Those started since the last group, and groups under way."""

    started: list[Callable[[], None]] = field(default_factory=list)
    groups: list[list[Callable[[], None]]] = field(default_factory=list)

    def start(self, target: Shared, pointer: Any, mask: Any = None, eviction_policy: str = "") -> None:
        """Zeros where the mask is not set."""
        offsets, is_there = torch.broadcast_tensors(pointer.offset, torch.tensor(True) if mask is None else mask)
        numbers = torch.where(is_there, pointer.numbers[torch.where(is_there, offsets, 0)], 0)
        assert numbers.shape == target.numbers.shape
        _spoil(target.numbers)
        self.started.append(lambda: target.numbers.copy_(numbers))  # type: ignore[arg-type, return-value]

    def commit(self) -> None:
        self.groups.append(self.started)
        self.started = []

    def wait(self, num_outstanding: int) -> None:
        while len(self.groups) > num_outstanding:
            for land in self.groups.pop(0):
                land()


def _spoil(numbers: Tensor) -> None:
    numbers.fill_(float("nan") if numbers.is_floating_point() else 0x77777777 & torch.iinfo(numbers.dtype).max)


def allocate_shared_memory(dtype: torch.dtype, shape: Sequence[int], _layout: object) -> Shared:
    numbers = torch.empty(tuple(shape), dtype=dtype)
    _spoil(numbers)
    return Shared(numbers)


def nothing(*_args: object) -> None:
    pass


COPIES = Copies()
# In place of names that kernels use.
COPYING = {
    "allocate_shared_memory": allocate_shared_memory,
    "commit_copies": COPIES.commit,
    "copy_to_shared": COPIES.start,
    "let_next_start": nothing,
    "thread_barrier": nothing,
    "wait_for_copies": COPIES.wait,
    "wait_for_previous": nothing,
}
