"""The matrices of all adapters beside those of one product, and the rows that go through them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

LEAST_RANK = 16  # that products on tensor cores take; adapters of lower rank are filled up with zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankMatrices:
    """A product may be several in one, its *parts*: each has a `down` of its own."""

    down: Tensor  # [adapters, parts, rank, inputs]
    up: Tensor  # [adapters, outputs, rank], scaled
    starts: tuple[int, ...]  # the first output of each part, and the end

    @property
    def rank(self) -> int:
        return self.up.shape[-1]

    def parts_within(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The parts that have some of the outputs from `first` to before `end`, each with the range of them."""
        edges = zip(self.starts, self.starts[1:], strict=False)
        ranges = ((part, max(first, start), min(end, stop)) for part, (start, stop) in enumerate(edges))
        return [(part, start, stop) for part, start, stop in ranges if start < stop]


def padded_rank(rank: int) -> int:
    """The rank that matrices are filled up to: a power of two."""
    return max(LEAST_RANK, 1 << (rank - 1).bit_length())


class AdapterRows:
    """The adapter of each row. `numbers` [rows] int32: of adapters from 1 on, 0 for rows without one."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    @cached_property
    def by_adapter(self) -> list[tuple[int, Tensor | slice]]:
        """The rows of each adapter that some have; a slice where all do. On a GPU, this waits for it."""
        present = [number for number in torch.unique(self.numbers).tolist() if number > 0]
        if len(present) == 1 and bool((self.numbers > 0).all()):
            return [(present[0], slice(None))]
        return [(number, (self.numbers == number).nonzero()[:, 0]) for number in present]
