"""How ranks find out whether sums can be made by reading other GPUs' memory: all of them decide alike, or use NCCL.

There is no GPU here: what a machine can do is made up, and the kernel is replaced.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from facet.layers import direct_sums
from facet.layers.direct_sums import Found, find_direct_sums, is_right
from facet.layers.rank_group import RankGroup
from tests.ranks import on_ranks

pytest.importorskip("triton")
from facet.kernels.sum_over_ranks import triton as kernel

CPU = torch.device("cpu")


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, other: True)


def find(group: RankGroup) -> Found:
    return find_direct_sums(group, CPU, None)


def test_gpus_that_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is enough."""
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, other: other != 2)
    for found in on_ranks(3, find):
        assert found == Found(None, "Sums over ranks go through NCCL: the GPUs cannot read each other's memory.")


def test_memory_that_one_rank_cannot_share(reachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(rank: object, device: object, store: object) -> object:
        if rank.index == 1:  # type: ignore[attr-defined]
            raise RuntimeError("no descriptor left\nwith a long trace")
        return object()

    monkeypatch.setattr(direct_sums, "share_buffers", share)
    here, there = on_ranks(2, find)
    assert here == (None, "Sums over ranks go through NCCL: memory could not be shared (on another rank).")
    assert there == (None, "Sums over ranks go through NCCL: memory could not be shared (no descriptor left).")


def test_a_torch_that_shares_no_memory(reachable: None) -> None:
    """As the one here, if it is for processors; elsewhere there is no such memory on a processor."""

    def share(group: RankGroup) -> Found:
        from torch import distributed as dist

        return find_direct_sums(group, CPU, dist.HashStore())

    for found in on_ranks(2, share):
        assert found.sums is None
        assert found.line.startswith("Sums over ranks go through NCCL: memory could not be shared (")


@pytest.mark.parametrize("fault", [0.0, 1e-3])
def test_sums_that_one_rank_gets_wrong(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "compile_for", lambda part, buffers: None)

    def check(group: RankGroup) -> bool:
        def gathered(tensor: Tensor, buffers: Callable[[Tensor], Tensor], most_polls: int) -> Tensor:
            return buffers(tensor)

        def add(tensor: Tensor) -> Tensor:
            total = direct_sums.sum_over_ranks(group.gather(tensor))
            return total + fault if group.rank.index == 1 else total

        monkeypatch.setattr(kernel, "sum_over_ranks", gathered)
        return is_right(group, add, CPU)  # type: ignore[arg-type]

    assert on_ranks(3, check) == [fault == 0] * 3


def test_a_group_takes_the_short_way_where_there_is_one() -> None:
    class Short:
        def takes(self, tensor: Tensor) -> bool:
            return len(tensor) < 3

        def sum(self, tensor: Tensor) -> Tensor:
            return tensor.fill_(7)

    def sums(group: RankGroup) -> list[list[float]]:
        with_short_way = RankGroup(group.rank, group._processes, short_way=Short())
        return [with_short_way.sum(torch.ones(size)).tolist() for size in (2, 3)]

    assert on_ranks(2, sums) == [[[7, 7], [2, 2, 2]]] * 2
