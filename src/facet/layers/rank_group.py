"""Sums and gathers tensors over the ranks that compute a model together.

Every rank makes the same calls in the same order; each call waits for all of them. A model on one rank has no group,
and makes no call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from facet.errors import EngineError
from facet.kernels.sum_over_ranks import sum_over_ranks
from facet.ranks import Rank

# Bytes of a tensor that is not worth two meetings of all ranks.
_SHORT = 1 << 20


class ShortWay(Protocol):
    """A faster way to sum some tensors, the same ones on every rank. It adds them in the order of the ranks."""

    def takes(self, tensor: Tensor) -> bool: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks, in place."""


class RankGroup:
    """The ranks of one model. `adds_in_order`: sums are the same to the last bit, whatever else is summed with them."""

    def __init__(
        self,
        rank: Rank,
        processes: Any,
        *,
        adds_in_order: bool = False,
        short_way: ShortWay | None = None,
        line: str = "",
    ) -> None:
        """`processes`: a process group of torch, of which no stub knows the methods. `line`: how sums are made."""
        self.rank = rank
        self.line = line
        self._processes = processes
        self._adds_in_order = adds_in_order
        self._short_way = short_way

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks, in place where it can be."""
        tensor = tensor.contiguous()
        if self._short_way is not None and self._short_way.takes(tensor):
            return self._short_way.sum(tensor)
        if self._adds_in_order and self.rank.size > 2:  # of two, either order gives the same
            return self._sum_in_order(tensor)
        with _failures_in_words():
            self._processes.allreduce([tensor]).wait()
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """[ranks, *shape]: what each of them has."""
        flat = tensor.contiguous().view(-1)
        gathered = flat.new_empty(self.rank.size * len(flat))
        with _failures_in_words():
            self._processes._allgather_base(gathered, flat).wait()
        return gathered.view(self.rank.size, *tensor.shape)

    def _sum_in_order(self, tensor: Tensor) -> Tensor:
        """A short tensor goes to all ranks at once. Of a long one each adds a slice and sends it to the others: no more
        bytes than a library moves that adds in any order."""
        if tensor.nbytes <= _SHORT:
            return sum_over_ranks(self.gather(tensor))
        size, count = self.rank.size, tensor.numel()
        slices = functional.pad(tensor.view(-1), (0, -count % size))
        received = torch.empty_like(slices)
        with _failures_in_words():
            self._processes.alltoall_base(received, slices, [], []).wait()
        total = sum_over_ranks(received.view(size, -1))
        return self.gather(total).view(-1)[:count].view(tensor.shape)

    def meet(self, device: torch.device) -> None:
        """Wait until all ranks are here."""
        self.least(0, device)

    def least(self, number: int, device: torch.device) -> int:
        """The smallest of the numbers that the ranks have."""
        return int(self.gather(torch.tensor([number], device=device)).min())


@contextmanager
def _failures_in_words() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise EngineError("Another rank of the model has ended, or cannot be reached.") from error
