"""Sums over ranks in one Triton kernel, for GPUs that can read each other's memory.

Every rank has a buffer that all ranks see. In a sum, each program of a rank copies its stretch of the values there,
signals the program with its number on every rank, waits for their signals, reads the stretches of all ranks and adds
them. Nothing else is exchanged, and nobody waits at the end:

- A program has two places in the buffer and takes turns between them. When it writes to one of them again, two turns
  later, every rank has signalled the turn between. So its sum before that is over, and nobody still reads the place.
- Signals are the numbers of turns and only grow, so nobody has to take them back. A rank may be a turn ahead, never
  two. The numbers run over after 2^31 turns, a day's work; only their differences count.
- The number of its last turn is in each program's own memory. So a launch that was captured in a graph can be replayed.

A program of one rank never waits for another of the same rank, and all programs of a launch fit on a GPU together. The
launches of a rank must follow each other on one stream, in the same order on all ranks.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.ranks import Rank

MOST_PROGRAMS = 128  # few enough to run together: four fit on a multiprocessor, and GPUs have more than 32 of these
BYTES_PER_PROGRAM = 4096
MOST_BYTES = MOST_PROGRAMS * BYTES_PER_PROGRAM  # of the values that are summed
NO_END = (1 << 31) - 1
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_PLACES_BYTES = 2 * MOST_BYTES  # two places for each program; the signals lie behind them


def buffer_bytes(num_ranks: int) -> int:
    """The bytes of the buffer of each rank, which has to be filled with zeros before the first sum of any."""
    return _PLACES_BYTES + 4 * MOST_PROGRAMS * num_ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedBuffers:
    """The buffers of all ranks, as one of them sees them."""

    rank: Rank
    addresses: Tensor  # int64 [ranks]: of the buffer of each rank, in this process
    turns: Tensor  # int32 [programs]: the last turn of each program of this rank; zeros before the first
    memory: object = None  # what has to live as long as the addresses are used


def sum_over_ranks(x: Tensor, buffers: SharedBuffers, *, most_polls: int = NO_END) -> Tensor:
    """Sums in place; every rank has to call it, with a tensor of the same size and type.

    Whoever does not hear of all others within `most_polls` looks goes on without them: the result is then no sum.
    """
    assert x.is_contiguous(), "it is summed in place"
    assert x.dtype in DTYPES, f"{x.dtype} is not summed here"
    assert x.nbytes <= MOST_BYTES, f"{x.nbytes} bytes, and buffers hold {MOST_BYTES}"
    num_programs = triton.cdiv(x.nbytes, BYTES_PER_PROGRAM)
    if num_programs:
        constants = {**sum_launch(buffers.rank, value_bytes=x.itemsize), **launch_options(x.device)}
        sum_kernel[(num_programs,)](x, buffers.addresses, buffers.turns, x.numel(), most_polls, **constants)
    return x


def compile_for(x: Tensor, buffers: SharedBuffers) -> None:
    """Compiles the kernel without a launch, so without the other ranks."""
    constants = {**sum_launch(buffers.rank, value_bytes=x.itemsize), **launch_options(x.device)}
    sum_kernel.warmup(x, buffers.addresses, buffers.turns, x.numel(), NO_END, grid=(1,), **constants)


def sum_launch(rank: Rank, *, value_bytes: int) -> dict[str, int]:
    """The kernel's constants."""
    return dict(
        OWN=rank.index,
        NUM_RANKS=rank.size,
        NUM_LANES=triton.next_power_of_2(rank.size),
        VALUES=BYTES_PER_PROGRAM // value_bytes,
        PROGRAMS=MOST_PROGRAMS,
        FIRST_SIGNAL=_PLACES_BYTES // 4,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["most_polls"])
def sum_kernel(
    x,
    addresses,
    turns,
    num_values,
    most_polls,
    OWN: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    NUM_LANES: tl.constexpr,
    VALUES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    FIRST_SIGNAL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    program = tl.program_id(0)
    turn = tl.load(turns + program) + 1
    values = program * VALUES + tl.arange(0, VALUES)
    is_value = values < num_values
    place = ((turn & 1) * PROGRAMS + program) * VALUES + tl.arange(0, VALUES)
    own = _part_of(OWN, addresses, x)
    tl.store(own + place, tl.load(x + values, mask=is_value), mask=is_value)
    # All threads have read the turn and stored their values; the signal releases these to whoever acquires it.
    tl.debug_barrier()
    tl.store(turns + program, turn)
    ranks = tl.arange(0, NUM_LANES)
    is_rank = ranks < NUM_RANKS
    first_signal = FIRST_SIGNAL + program * NUM_RANKS
    signals = tl.load(addresses + ranks, mask=is_rank, other=0).to(tl.pointer_type(tl.int32)) + first_signal
    tl.atomic_xchg(signals + OWN, turn, mask=is_rank, sem="release", scope="sys")
    own_signals = tl.load(addresses + OWN).to(tl.pointer_type(tl.int32)) + first_signal
    num_polls = 0
    turns_behind = 1
    while (turns_behind > 0) & (num_polls < most_polls):
        heard = tl.atomic_add(own_signals + ranks, 0, mask=is_rank, sem="acquire", scope="sys")
        turns_behind = tl.max(tl.where(is_rank, turn - heard, 0))
        num_polls += 1
    # What one thread has acquired, all threads may read.
    tl.debug_barrier()
    total = tl.load(_part_of(0, addresses, x) + place, mask=is_value).to(tl.float32)
    for rank in tl.static_range(1, NUM_RANKS):
        total += tl.load(_part_of(rank, addresses, x) + place, mask=is_value).to(tl.float32)
    tl.store(x + values, total.to(x.dtype.element_ty), mask=is_value)


@triton.jit
def _part_of(rank, addresses, x):
    """A pointer to a rank's buffer, as one to values like those of `x`. Buffers are aligned, so that loads are wide."""
    return tl.multiple_of(tl.load(addresses + rank).to(tl.pointer_type(x.dtype.element_ty)), 16)
