"""Sorts pairs by their experts, and divides the pairs of each expert into groups, in Triton.

A pair is a row and one of its choices; pairs are numbered row by row. A group is what one program of a product
computes. There is memory for as many groups as the worst division of pairs among experts needs, since the host does not
wait to learn the actual one.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous

# Up to this many pairs, one program does everything: it compares every pair with every other.
MOST_AT_ONCE = 512
# Pairs that one program counts or places, where there are more.
CHUNK = 128
# Others that a pair is compared with at a time, and groups that are listed at a time.
_SLICE = 32


class Groups(NamedTuple):
    order: Tensor  # int32 [pairs]: in order of experts, within an expert by number
    table: Tensor  # int32 [groups, 3]: expert, first place in that order, end. A group that is not there ends at 0

    @property
    def num_groups(self) -> int:
        """With those that are not there."""
        return self.table.shape[0]


def group_pairs(chosen: Tensor, num_experts: int, group_size: int) -> Groups:
    """chosen: [rows, choices], contiguous. Groups have `group_size` pairs, the last of an expert what is left."""
    num_pairs = chosen.numel()
    num_groups = num_pairs // group_size + min(num_experts, num_pairs)
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    table = torch.empty(num_groups, 3, dtype=torch.int32, device=chosen.device)
    experts_pad = triton.next_power_of_2(num_experts)
    options = launch_options(chosen.device)
    if num_pairs <= MOST_AT_ONCE:
        _sort_at_once_kernel[(1,)](
            chosen, order, table, num_pairs, num_experts, num_groups,
            GROUP_SIZE=group_size, PAIRS_PAD=max(_SLICE, triton.next_power_of_2(num_pairs)), EXPERTS_PAD=experts_pad,
            SLICE=_SLICE, num_warps=8, **options,
        )  # fmt: skip
        return Groups(order, table)
    num_chunks = triton.cdiv(num_pairs, CHUNK)
    counts = torch.empty(num_chunks, num_experts, dtype=torch.int32, device=chosen.device)
    sizes = dict(EXPERTS_PAD=experts_pad, CHUNK=CHUNK, num_warps=4)
    _count_kernel[(num_chunks,)](chosen, counts, num_pairs, num_experts, **sizes, **options)
    ends = counts.cumsum(0, dtype=torch.int32)
    _place_kernel[(num_chunks,)](chosen, counts, ends, order, num_pairs, num_experts, **sizes, **options)
    _list_kernel[(triton.cdiv(num_groups, CHUNK),)](
        ends[-1], table, num_experts, num_groups,
        GROUP_SIZE=group_size, EXPERTS_PAD=experts_pad, CHUNK=CHUNK, SLICE=_SLICE, num_warps=4, **options,
    )  # fmt: skip
    return Groups(order, table)


@triton.jit
def _list_groups(totals, table, first, end, GROUP_SIZE: tl.constexpr, EXPERTS_PAD: tl.constexpr, SLICE: tl.constexpr):
    """Writes groups `first` to `end` of the table; `totals` are the pairs of each expert."""
    experts = tl.arange(0, EXPERTS_PAD)
    num_groups = (totals + GROUP_SIZE - 1) // GROUP_SIZE
    last_groups = tl.cumsum(num_groups, 0)
    first_groups = last_groups - num_groups
    last_places = tl.cumsum(totals, 0)
    first_places = last_places - totals
    for start in range(first, end, SLICE):
        groups = start + tl.arange(0, SLICE)
        is_own = (first_groups[:, None] <= groups[None, :]) & (groups[None, :] < last_groups[:, None])
        expert = tl.sum(tl.where(is_own, experts[:, None], 0), 0)
        place = first_places[:, None] + (groups[None, :] - first_groups[:, None]) * GROUP_SIZE
        place_end = tl.sum(tl.where(is_own, tl.minimum(place + GROUP_SIZE, last_places[:, None]), 0), 0)
        is_group = groups < end
        tl.store(table + groups * 3, expert, mask=is_group)
        tl.store(table + groups * 3 + 1, tl.sum(tl.where(is_own, place, 0), 0), mask=is_group)
        tl.store(table + groups * 3 + 2, place_end, mask=is_group)


@triton.jit(do_not_specialize=["num_pairs", "num_groups"])
def _sort_at_once_kernel(
    chosen, order, table, num_pairs, num_experts, num_groups,
    GROUP_SIZE: tl.constexpr, PAIRS_PAD: tl.constexpr, EXPERTS_PAD: tl.constexpr, SLICE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    start_after_previous(IS_DEPENDENT)
    pairs = tl.arange(0, PAIRS_PAD)
    experts = tl.arange(0, EXPERTS_PAD)
    # Pairs that are not there belong to an expert after the last.
    pair_experts = tl.load(chosen + pairs, mask=pairs < num_pairs, other=num_experts).to(tl.int32)
    keys = pair_experts * PAIRS_PAD + pairs
    places = tl.zeros([PAIRS_PAD], tl.int32)
    totals = tl.zeros([EXPERTS_PAD], tl.int32)
    for start in range(0, num_pairs, SLICE):
        others = start + tl.arange(0, SLICE)
        other_experts = tl.load(chosen + others, mask=others < num_pairs, other=num_experts).to(tl.int32)
        other_keys = other_experts * PAIRS_PAD + others
        places += tl.sum((other_keys[None, :] < keys[:, None]).to(tl.int32), 1)
        totals += tl.sum((other_experts[None, :] == experts[:, None]).to(tl.int32), 1)
    tl.store(order + places, pairs, mask=pairs < num_pairs)
    # Where experts are no power of two, the first of those that are not there was counted with pairs that are not.
    totals = tl.where(experts < num_experts, totals, 0)
    _list_groups(totals, table, 0, num_groups, GROUP_SIZE, EXPERTS_PAD, SLICE)


@triton.jit(do_not_specialize=["num_groups"])
def _list_kernel(
    totals, table, num_experts, num_groups,
    GROUP_SIZE: tl.constexpr, EXPERTS_PAD: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    start_after_previous(IS_DEPENDENT)
    experts = tl.arange(0, EXPERTS_PAD)
    counts = tl.load(totals + experts, mask=experts < num_experts, other=0)
    first = tl.program_id(0) * CHUNK
    _list_groups(counts, table, first, tl.minimum(first + CHUNK, num_groups), GROUP_SIZE, EXPERTS_PAD, SLICE)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    chosen, counts, num_pairs, num_experts,
    EXPERTS_PAD: tl.constexpr, CHUNK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """How many pairs of a chunk each expert has."""
    start_after_previous(IS_DEPENDENT)
    chunk = tl.program_id(0)
    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    experts = tl.arange(0, EXPERTS_PAD)
    pair_experts = tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
    is_same = pair_experts[:, None] == experts[None, :]
    tl.store(counts + chunk * num_experts + experts, tl.sum(is_same.to(tl.int32), 0), mask=experts < num_experts)


@triton.jit(do_not_specialize=["num_pairs"])
def _place_kernel(
    chosen, counts, ends, order, num_pairs, num_experts,
    EXPERTS_PAD: tl.constexpr, CHUNK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Writes a chunk's pairs to their places: after those of earlier experts, earlier chunks, and earlier pairs."""
    start_after_previous(IS_DEPENDENT)
    chunk = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_PAD)
    is_expert = experts < num_experts
    totals = tl.load(ends + (tl.num_programs(0) - 1) * num_experts + experts, mask=is_expert, other=0)
    end = tl.load(ends + chunk * num_experts + experts, mask=is_expert, other=0)
    count = tl.load(counts + chunk * num_experts + experts, mask=is_expert, other=0)
    first_place = tl.cumsum(totals, 0) - totals + end - count
    local = tl.arange(0, CHUNK)
    pairs = chunk * CHUNK + local
    is_pair = pairs < num_pairs
    row_experts = tl.load(chosen + pairs, mask=is_pair, other=-1).to(tl.int32)
    is_own = row_experts[:, None] == experts[None, :]
    place = tl.sum(tl.where(is_own, first_place[None, :], 0), 1)
    # The same experts once more, along the other axis.
    column_experts = tl.load(chosen + chunk * CHUNK + local, mask=is_pair, other=-1).to(tl.int32)
    is_before = (row_experts[:, None] == column_experts[None, :]) & (local[None, :] < local[:, None])
    place += tl.sum(is_before.to(tl.int32), 1)
    tl.store(order + place, pairs, mask=is_pair)
