"""Sums and gathers tensors over the ranks that compute a model together.

Every rank makes the same calls in the same order; each call waits for all of them. A model on one rank has no group,
and makes no call.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from facet.errors import EngineError
from facet.ranks import Rank

# For one call. Ranks may load at different speeds, and whoever started them ends them all when one of them dies.
_PATIENCE = timedelta(hours=1)

LOOPBACK = "127.0.0.1"


class RankGroup:
    """The ranks of one model. `adds_in_order`: sums are the same to the last bit, whatever else is summed with them."""

    def __init__(self, rank: Rank, processes: Any, *, adds_in_order: bool = False) -> None:
        """`processes`: a process group of torch, of which no stub knows the methods."""
        self.rank = rank
        self._processes = processes
        self._adds_in_order = adds_in_order

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all ranks, in place where it can be."""
        if self._adds_in_order and self.rank.size > 2:  # of two, either order gives the same
            total, *others = self.gather(tensor).unbind()
            for other in others:
                total = total + other
            return total
        tensor = tensor.contiguous()
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


def file_store(folder: Path, rank: Rank) -> Any:
    """For ranks on one machine. `folder` is one that all of them see and nobody else can write to."""
    return dist.FileStore(str(folder / "ranks"), rank.size)  # type: ignore[attr-defined]


def network_store(host: str, port: int, rank: Rank, secret: str, listener: socket.socket | None) -> Any:
    """For ranks on several machines. Rank 0 keeps it, and brings a socket that listens there.

    The store takes keys and values from anybody, so ours are under a name that nobody else knows.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        rank.size,
        is_master=listener is not None,
        timeout=_PATIENCE,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return dist.PrefixStore(secret, store)  # type: ignore[attr-defined]


def join_ranks(
    rank: Rank, device: torch.device, store: Any, *, host: str = LOOPBACK, adds_in_order: bool = False
) -> RankGroup:
    """Meet the other ranks in a store of torch. `host`: the address of this machine that the others know."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = _PATIENCE
        return RankGroup(rank, dist.ProcessGroupNCCL(store, rank.index, rank.size, nccl), adds_in_order=adds_in_order)
    return RankGroup(rank, gloo(store, rank, host=host), adds_in_order=adds_in_order)


def gloo(store: Any, rank: Rank, *, host: str = LOOPBACK, patience: timedelta = _PATIENCE) -> Any:
    """Ranks on processors. On one machine they talk over the loopback interface, where no other can reach them."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = patience
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank.index, rank.size, options)
