"""Launches kernels around `wide_loop.py`, of any width of codes, and what puts rows in the order of codes before."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.arrivals import counters_on
from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning
from facet.kernels.quantized.shuffled_product import TILE_OUT, Shuffled, operands

_WORDS = 1024  # of x, that a program puts in order


class InBlocks(Shuffled, Protocol):
    @property
    def num_blocks(self) -> int: ...


def launch(
    kernel: Any,
    x: Tensor,
    matrix: InBlocks,
    per_layer_input: Tensor | None,
    tuning: WideTuning,
    tensors: Sequence[Tensor | None],
    *,
    num_turns: int,
    num_pairs: int = 4,
    constants: Mapping[str, Any],
) -> Tensor:
    """`tensors`: of the matrix. `num_turns`: of a tile. `num_pairs`: as `in_order_of_codes` takes it."""
    num_rows = x.shape[0]
    x, gates, gate_stride, output, ends = operands(x, matrix, per_layer_input)
    num_row_groups = triton.cdiv(num_rows, tuning.rows)
    ordered = in_order_of_codes(
        x,
        num_row_groups * tuning.rows,
        num_turns * tuning.turn_in,
        num_pairs=num_pairs,
        tile_rows=tuning.rows,
        tile_in=tuning.turn_in,
    )
    num_programs = num_row_groups * tuning.programs
    partial_sums = torch.empty(
        (num_programs, 2, TILE_OUT * tuning.tiles, tuning.rows), dtype=torch.float32, device=x.device
    )
    kernel[(num_programs,)](
        ordered,
        *tensors,
        gates,
        output,
        partial_sums,
        counters_on(x.device, num_row_groups * triton.cdiv(matrix.num_tiles, tuning.tiles)),
        gate_stride,
        num_rows,
        matrix.num_tiles,
        matrix.num_blocks,
        **ends,
        **constants,
        **launch_options(x.device),
    )
    return output


def in_order_of_codes(x: Tensor, num_rows: int, num_in: int, *, num_pairs: int, tile_rows: int, tile_in: int) -> Tensor:
    """x [num_rows, num_in] with zeros where it ends, and of every four times `num_pairs` pairs, pair num_pairs * t + i
    as pair 4 i + t: a thread's inputs are neighbours, but not in what tensor cores take its registers for.

    In tiles of some rows and inputs, one after the other; those of the same rows come first.
    """
    if x.stride(1) != 1 or x.stride(0) % 2 != 0:
        x = x.contiguous()
    ordered = torch.empty(num_rows, num_in, dtype=x.dtype, device=x.device)
    words = x.view(torch.int32)
    _order_kernel[(num_rows, triton.cdiv(num_in // 2, _WORDS))](
        words,
        ordered.view(torch.int32),
        words.stride(0),
        x.shape[0],
        WIDTH=x.shape[1] // 2,
        NUM_WORDS=num_in // 2,
        BLOCK=_WORDS,
        PAIRS=num_pairs,
        TILE_ROWS=tile_rows,
        TILE_WORDS=tile_in // 2,
        num_warps=4,
        **launch_options(x.device),
    )
    return ordered


@triton.jit(do_not_specialize=["num_rows"])
def _order_kernel(
    x,
    ordered,
    x_stride,
    num_rows,
    WIDTH: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,  # of a thread
    TILE_ROWS: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    row = tl.program_id(0)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = word % (4 * PAIRS)
    source = word - within + within % 4 * PAIRS + within // 4
    is_there = (row < num_rows) & (source < WIDTH)
    values = tl.load(x + row.to(tl.int64) * x_stride + source, mask=is_there, other=0)
    first_row = row // TILE_ROWS * TILE_ROWS
    tile = first_row.to(tl.int64) * NUM_WORDS + word // TILE_WORDS * (TILE_ROWS * TILE_WORDS)
    tl.store(ordered + tile + (row - first_row) * TILE_WORDS + word % TILE_WORDS, values, mask=word < NUM_WORDS)
