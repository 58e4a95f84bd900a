"""Sums small tensors in one kernel that reads the memory of the other GPUs, where that works and is faster than NCCL.

All this is found out when ranks meet, in steps that all of them take together: can the GPUs reach each other, can
memory be shared, are the sums right to the last bit, and up to which size are they faster. Where one step fails on one
rank, all of them go on with NCCL, and a line says why.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from facet.kernels.sum_over_ranks import sum_over_ranks
from facet.layers.rank_group import RankGroup
from facet.ranks import Rank

if TYPE_CHECKING:  # machines without a GPU need no Triton
    from facet.kernels.sum_over_ranks.triton import SharedBuffers

_NAME = "facet-sums"
_PATIENCE = timedelta(minutes=1)  # with ranks that should be here, since they have just met
_POLLS_OF_A_CHECK = 1 << 22  # seconds: ranks check together
_CHECKED_SIZES = (1, 2560, 65_537)  # of tensors
_TIMED_BYTES = tuple(2**power for power in range(12, 20))
_CALLS_PER_GRAPH = 20
_NUM_REPLAYS = 5
_THROUGH_NCCL = "Sums over ranks go through NCCL"


class DirectSums:
    """Sums over ranks of tensors of at most so many bytes."""

    def __init__(self, buffers: "SharedBuffers", most_bytes: int) -> None:
        from facet.kernels.sum_over_ranks import triton

        self._buffers, self._kernel, self._dtypes = buffers, triton.sum_over_ranks, triton.DTYPES
        self._most_bytes = min(most_bytes, triton.MOST_BYTES)

    def takes(self, tensor: Tensor) -> bool:
        return tensor.dtype in self._dtypes and tensor.nbytes <= self._most_bytes

    def sum(self, tensor: Tensor) -> Tensor:
        return self._kernel(tensor, self._buffers)


class Found(NamedTuple):
    sums: DirectSums | None
    line: str  # for people


def find_direct_sums(group: RankGroup, device: torch.device, store: Any) -> Found:
    """The direct sums of the ranks of one machine, whose GPUs have their numbers. `group` sums without them."""

    def do_all(here: bool) -> bool:
        return bool(group.least(int(here), device))

    others = [index for index in range(group.rank.size) if index != group.rank.index]
    if not do_all(all(torch.cuda.can_device_access_peer(device, other) for other in others)):
        return Found(None, f"{_THROUGH_NCCL}: the GPUs cannot read each other's memory.")
    buffers = problem = None
    try:
        buffers = share_buffers(group.rank, device, store)
    except (RuntimeError, ImportError, AttributeError) as error:  # torch calls its own interface experimental
        problem = str(error).partition("\n")[0]
    if not do_all(buffers is not None):
        return Found(None, f"{_THROUGH_NCCL}: memory could not be shared ({problem or 'on another rank'}).")
    assert buffers is not None
    if not do_all(is_right(group, buffers, device)):
        return Found(None, f"{_THROUGH_NCCL}: those made by reading other GPUs' memory were wrong.")
    return _timed(group, buffers, device)


def share_buffers(rank: Rank, device: torch.device, store: Any) -> "SharedBuffers":
    """The buffers of all ranks, as this one sees them. Raises where torch or the machine cannot do that."""
    from facet.kernels.sum_over_ranks.triton import MOST_PROGRAMS, SharedBuffers, buffer_bytes

    torchs: Any = torch._C._distributed_c10d
    memory = torchs._SymmetricMemory
    with _less_patience(store):
        ours: Any = dist.PrefixStore(_NAME, store)  # type: ignore[attr-defined]
        # Some versions of torch look for a group by its name, others for what they were told of one.
        processes: Any = dist.ProcessGroup(ours, rank.index, rank.size)
        processes._set_group_name(_NAME)
        torchs._register_process_group(_NAME, processes)
        memory.set_group_info(_NAME, rank.index, rank.size, ours)
        buffer = memory.empty_strided_p2p((buffer_bytes(rank.size),), (1,), torch.uint8, device, _NAME)
        buffer.zero_()
        torch.cuda.synchronize(device)  # before others can write to it
        handle = memory.rendezvous(buffer, _NAME)
    addresses = list(handle.buffer_ptrs)
    if addresses[rank.index] != buffer.data_ptr():
        raise RuntimeError("torch shares another piece of memory than the one asked for")
    return SharedBuffers(
        rank=rank,
        addresses=torch.tensor(addresses, dtype=torch.int64, device=device),
        turns=torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device),
        memory=(buffer, handle),
    )


def is_right(group: RankGroup, buffers: "SharedBuffers", device: torch.device) -> bool:
    """Whether the sums of all ranks are those that the reference makes of the parts, several times in a row. Nobody
    waits forever."""
    from facet.kernels.sum_over_ranks import triton

    generator = torch.Generator(device).manual_seed(group.rank.index)
    parts = [
        torch.randn(size, generator=generator, device=device).to(dtype)
        for dtype in triton.DTYPES
        for size in _CHECKED_SIZES
    ]
    for part in parts:
        triton.compile_for(part, buffers)  # so that nobody waits for another rank's compiler
    group.meet(device)
    for part in parts:
        expected = sum_over_ranks(group.gather(part))
        found = triton.sum_over_ranks(part.clone(), buffers, most_polls=_POLLS_OF_A_CHECK)
        if not group.least(int(torch.equal(found, expected)), device):
            return False
    return True


def _timed(group: RankGroup, buffers: "SharedBuffers", device: torch.device) -> Found:
    """Direct sums up to the size at which another way is faster."""
    sums = DirectSums(buffers, _TIMED_BYTES[-1])
    most_bytes, told = 0, ""
    for num_bytes in _TIMED_BYTES:
        direct, other = (_microseconds(way, num_bytes, group, device) for way in (sums.sum, group.sum))
        told = told or f"{num_bytes // 1024} KiB take {direct:.0f} us, through NCCL {other:.0f} us"
        if not group.least(int(direct < other), device):
            break
        most_bytes = num_bytes
    if not most_bytes:
        return Found(None, f"{_THROUGH_NCCL}, which is faster than reading other GPUs' memory ({told}).")
    size = f"{most_bytes // 1024} KiB"
    return Found(
        DirectSums(buffers, most_bytes),
        f"Sums over ranks of up to {size} are made by reading other GPUs' memory ({told}); larger ones through NCCL.",
    )


def _microseconds(
    sum_in_place: Callable[[Tensor], Tensor], num_bytes: int, group: RankGroup, device: torch.device
) -> float:
    """The time of one call among many in a graph, as a decode step makes them."""
    values = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=device)
    sum_in_place(values)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_PER_GRAPH):
            values = sum_in_place(values)
    times: list[float] = []
    for _ in range(_NUM_REPLAYS):
        group.meet(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        times.append(begin.elapsed_time(end) * 1000 / _CALLS_PER_GRAPH)
    return min(times)


@contextmanager
def _less_patience(store: Any) -> Iterator[None]:
    before = store.timeout
    store.set_timeout(_PATIENCE)
    try:
        yield
    finally:
        store.set_timeout(before)
