"""Lets the ranks of a model meet, in a store of torch, and finds out how they exchange sums best."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from facet.layers.direct_sums import find_direct_sums
from facet.layers.rank_group import RankGroup
from facet.ranks import Rank

# For one call. Ranks may load at different speeds, and whoever started them ends them all when one of them dies.
_PATIENCE = timedelta(hours=1)

LOOPBACK = "127.0.0.1"


def file_store(folder: Path, rank: Rank) -> Any:
    """The store of ranks on one machine. `folder` is one that all of them see and nobody else can write to."""
    return dist.FileStore(str(folder / "ranks"), rank.size)  # type: ignore[attr-defined]


def network_store(host: str, port: int, rank: Rank, secret: str, listener: socket.socket | None) -> Any:
    """The store of ranks on several machines. Rank 0 keeps it, and brings a socket that listens there.

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
    rank: Rank,
    device: torch.device,
    store: Any,
    *,
    host: str = LOOPBACK,
    adds_in_order: bool = False,
    shares_memory: bool = False,
) -> RankGroup:
    """Meet the other ranks in a store of torch. `host`: the address of this machine that the others know.

    `shares_memory`: all ranks are on this machine, and GPUs may read each other's memory, if they can.
    """
    if device.type != "cuda":
        return RankGroup(rank, gloo(store, rank, host=host), adds_in_order=adds_in_order)
    torch.cuda.set_device(device)
    nccl = dist.ProcessGroupNCCL.Options()
    nccl._timeout = _PATIENCE
    processes = dist.ProcessGroupNCCL(store, rank.index, rank.size, nccl)
    group = RankGroup(rank, processes, adds_in_order=adds_in_order)
    if not shares_memory:
        return group
    found = find_direct_sums(group, device, store)
    return RankGroup(rank, processes, adds_in_order=adds_in_order, short_way=found.sums, line=found.line)


def gloo(store: Any, rank: Rank, *, host: str = LOOPBACK, patience: timedelta = _PATIENCE) -> Any:
    """Ranks on processors. On one machine they talk over the loopback interface, where no other can reach them."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = patience
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank.index, rank.size, options)
