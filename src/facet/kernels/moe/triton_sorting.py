"""Sorts pairs by their experts, and divides the pairs of each expert into groups, in Triton.

Pairs are cut into blocks. A first kernel counts each expert's pairs in every block. In a second, the program of a block
adds up these counts, which tells it where its own pairs of each expert begin, and places them. It knows then how many
pairs each expert has, too, and lists some of the groups. The program of a single block counts by itself.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.moe.groups import Groups, empty_groups

# Most pairs of a block: 65,536 pairs have about one for each multiprocessor of a large GPU.
BLOCK = 512
# Pairs of a block that a program compares with each other. Twice as many would be as much work again.
CHUNK = 256
# Blocks whose counts are added at a time.
COUNTS = 64


def group_pairs(chosen: Tensor, num_experts: int, group_size: int) -> Groups:
    """chosen: [rows, choices], contiguous. Groups have `group_size` pairs, the last of an expert what is left."""
    groups, num_pairs = empty_groups(chosen, num_experts, group_size), chosen.numel()
    num_blocks = triton.cdiv(num_pairs, BLOCK)
    block = BLOCK if num_blocks > 1 else max(16, triton.next_power_of_2(num_pairs))
    sizes = dict(EXPERTS_PAD=triton.next_power_of_2(num_experts), BLOCK=block, num_warps=8)
    options = launch_options(chosen.device)
    counts = None
    if num_blocks > 1:
        counts = torch.empty(num_blocks, sizes["EXPERTS_PAD"], dtype=torch.int16, device=chosen.device)
        count_kernel[(num_blocks,)](chosen, counts, num_pairs, **sizes, **options)
    place_kernel[(num_blocks,)](
        chosen, counts, *groups, num_pairs, groups.num_groups,
        GROUP_SIZE=group_size, CHUNK=min(CHUNK, block), COUNTS=COUNTS, **sizes, **options,
    )  # fmt: skip
    return groups


@triton.jit
def _count(chosen, first, num_pairs, EXPERTS_PAD: tl.constexpr, BLOCK: tl.constexpr):
    """How many pairs of a block each expert has."""
    pairs = first + tl.arange(0, BLOCK)
    is_pair = pairs < num_pairs
    pair_experts = tl.load(chosen + pairs, mask=is_pair, other=0).to(tl.int32)
    return tl.histogram(pair_experts, EXPERTS_PAD, mask=is_pair)


@triton.jit(do_not_specialize=["num_pairs"])
def count_kernel(chosen, counts, num_pairs, EXPERTS_PAD: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    block = tl.program_id(0)
    count = _count(chosen, block * BLOCK, num_pairs, EXPERTS_PAD, BLOCK)
    tl.store(counts + block * EXPERTS_PAD + tl.arange(0, EXPERTS_PAD), count.to(tl.int16))


@triton.jit
def _add_counts(counts, block, num_blocks, EXPERTS_PAD: tl.constexpr, COUNTS: tl.constexpr):
    """The pairs of each expert in blocks before `block`, and in all."""
    experts = tl.arange(0, EXPERTS_PAD)[None, :]
    before = tl.zeros([COUNTS, EXPERTS_PAD], tl.int32)
    totals = tl.zeros([COUNTS, EXPERTS_PAD], tl.int32)
    for start in range(0, num_blocks, COUNTS):
        blocks = start + tl.arange(0, COUNTS)[:, None]
        count = tl.load(counts + blocks * EXPERTS_PAD + experts, mask=blocks < num_blocks, other=0).to(tl.int32)
        before += tl.where(blocks < block, count, 0)
        totals += count
    return tl.sum(before, 0), tl.sum(totals, 0)


@triton.jit
def _ranks(keys, CHUNK: tl.constexpr):
    """How many of the others are less than each of the keys: a difference says so by its sign.

    Others are the first axis, which a thread adds up by itself. They come in two parts, which leaves it registers.
    """
    others, more_others = tl.split(tl.reshape(keys, [CHUNK // 2, 2]))
    negative = tl.sum((others[:, None] - keys[None, :]) >> 31, 0)
    return -negative - tl.sum((more_others[:, None] - keys[None, :]) >> 31, 0)


@triton.jit(do_not_specialize=["num_pairs", "num_groups"])
def place_kernel(
    chosen, counts, order, table, taken, num_pairs, num_groups,
    GROUP_SIZE: tl.constexpr, EXPERTS_PAD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, COUNTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Writes a block's pairs to their places: after those of earlier experts, earlier blocks, and earlier pairs."""
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    block = tl.program_id(0)
    end = tl.minimum((block + 1) * BLOCK, num_pairs)
    local = tl.arange(0, CHUNK)
    pairs = block * BLOCK + local
    pair_experts = tl.load(chosen + pairs, mask=pairs < end, other=0).to(tl.int32)
    if counts is None:
        totals = _count(chosen, 0, num_pairs, EXPERTS_PAD, BLOCK)
        before = tl.zeros([EXPERTS_PAD], tl.int32)
    else:
        before, totals = _add_counts(counts, block, tl.num_programs(0), EXPERTS_PAD, COUNTS)
    first_places = tl.cumsum(totals, 0) - totals
    next_places = first_places + before
    for start in range(block * BLOCK, end, CHUNK):
        pairs = start + local
        is_pair = pairs < end
        # The choices of the next chunk are on their way meanwhile.
        following = tl.load(chosen + pairs + CHUNK, mask=pairs + CHUNK < end, other=0).to(tl.int32)
        # Pairs that are not there come after all others.
        places = _ranks(tl.where(is_pair, pair_experts, EXPERTS_PAD) * CHUNK + local, CHUNK)
        if counts is not None or BLOCK > CHUNK:  # there are more pairs than those of this chunk
            count = tl.histogram(pair_experts, EXPERTS_PAD, mask=is_pair)
            first_ranks = tl.cumsum(count, 0) - count
            places += tl.gather(next_places - first_ranks, pair_experts, 0)
            next_places += count
        tl.store(order + places, pairs, mask=is_pair)
        pair_experts = following
    if block == 0:
        tl.store(taken, 0)
    _list_groups(totals, first_places, table, num_groups, GROUP_SIZE, EXPERTS_PAD)


@triton.jit
def _list_groups(totals, first_places, table, num_groups, GROUP_SIZE: tl.constexpr, EXPERTS_PAD: tl.constexpr):
    """Writes some groups of each expert to the table, which programs take in turn, and zeros for those not there."""
    experts = tl.arange(0, EXPERTS_PAD)
    num_own = (totals + GROUP_SIZE - 1) // GROUP_SIZE
    first_groups = tl.cumsum(num_own, 0) - num_own
    for number in range(tl.program_id(0), tl.max(num_own, 0), tl.num_programs(0)):
        entries = table + (first_groups + number) * 3
        place = first_places + number * GROUP_SIZE
        is_group = number < num_own
        tl.store(entries, experts, mask=is_group)
        tl.store(entries + 1, place, mask=is_group)
        tl.store(entries + 2, tl.minimum(place + GROUP_SIZE, first_places + totals), mask=is_group)
    first_number = tl.sum(num_own, 0) * 3 + tl.program_id(0) * EXPERTS_PAD
    for start in range(first_number, num_groups * 3, tl.num_programs(0) * EXPERTS_PAD):
        numbers = start + tl.arange(0, EXPERTS_PAD)
        tl.store(table + numbers, 0, mask=numbers < num_groups * 3)
