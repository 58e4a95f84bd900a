"""Rounds rows to eight bits in Triton, each by its largest magnitude. Same meaning as `rounding.py`.

Of many rows, a program has one: it holds the row in its registers and reads it once, also where the row is a gated
activation, which then never goes to memory. Few rows are shared by programs, each of which looks for the largest
magnitude itself, among all numbers of the row or among the largest of its parts.
"""

# mypy: disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.geglu.triton import geglu, let_through
from facet.kernels.rms_norm.triton import load_part, store_part
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows, RowCodes
from facet.kernels.to_eight_bits import greater_magnitudes, largest_magnitude, scale_of, to_codes

# Up to this many rows, several programs share one.
_MOST_SHARED_ROWS = 64
# Columns that a program rounds at a time, where it does not hold the row.
_FEW_ROWS_BLOCK, _LONG_ROWS_BLOCK, _LEAST_BLOCK = 2048, 4096, 256


@dataclass(frozen=True, slots=True)
class WholeRows:
    """How a program holds a row: `block` columns at a time."""

    block: int
    num_warps: int


# The longest row that a program holds: 48 numbers, in half as many registers, for each thread of sixteen warps.
LONGEST_WHOLE_ROW = 24576
# Up to this length eight warps hold a row, in wide loads and few enough registers for four programs on a
# multiprocessor. Longer ones would leave two programs of eight warps each; sixteen warps hide more.
_LONGEST_OF_EIGHT_WARPS = 12288


def choose_whole_rows(width: int) -> WholeRows:
    block = min(2048, max(_LEAST_BLOCK, triton.next_power_of_2(width)))
    return WholeRows(block, 16 if width > _LONGEST_OF_EIGHT_WARPS else max(1, block // 256))


def round_rows(x: Tensor | MeasuredRows, codes: RowCodes, whole: WholeRows | None = None) -> RoundedRows:
    """`whole`, here and below: None: chosen by the shape."""
    values, magnitudes = x if isinstance(x, MeasuredRows) else (x, x)
    values = values if values.stride(1) == 1 else values.contiguous()
    num_rows, width = values.shape
    if num_rows > _MOST_SHARED_ROWS and width <= LONGEST_WHOLE_ROW:
        return _round_whole_rows(values, width, codes, whole, is_gated=False)
    magnitudes = magnitudes if magnitudes.stride(1) == 1 else values
    rounded = codes.empty(values)
    is_shared = num_rows <= _MOST_SHARED_ROWS
    block = _block_of(width, _FEW_ROWS_BLOCK if is_shared else _LONG_ROWS_BLOCK)
    parts = triton.cdiv(width, block) if is_shared else 1
    num_magnitudes = magnitudes.shape[1]
    _round_rows_kernel[(num_rows, parts)](
        values,
        magnitudes,
        rounded.codes,
        rounded.scales,
        values.stride(0),
        magnitudes.stride(0),
        WIDTH=width,
        NUM_MAGNITUDES=num_magnitudes,
        BLOCK=block,
        MAGNITUDES_BLOCK=min(block, triton.next_power_of_2(num_magnitudes)),
        PARTS=parts,
        **codes.constants,
        num_warps=max(1, min(8, block // 512)),
        **launch_options(values.device),
    )
    return rounded


def round_geglu(gate_up: Tensor, codes: RowCodes, whole: WholeRows | None = None) -> RoundedRows:
    """gelu_tanh(gate) * up of rows [gate, up], and that rounded: the bits of `geglu` followed by `round_rows`."""
    width = gate_up.shape[1] // 2
    if width > LONGEST_WHOLE_ROW:
        return round_rows(geglu(gate_up), codes)
    return _round_whole_rows(gate_up.contiguous(), width, codes, whole, is_gated=True)


def _round_whole_rows(
    x: Tensor, width: int, codes: RowCodes, whole: WholeRows | None, *, is_gated: bool
) -> RoundedRows:
    whole = whole or choose_whole_rows(width)
    rounded = codes.empty(x[:, :width])
    round_whole_rows_kernel[(x.shape[0],)](
        x,
        rounded.codes,
        rounded.scales,
        x.stride(0),
        WIDTH=width,
        BLOCK=whole.block,
        IS_GATED=is_gated,
        **codes.constants,
        num_warps=whole.num_warps,
        **launch_options(x.device),
    )
    return rounded


def _block_of(width: int, most: int) -> int:
    """How many columns a program holds: a power of two that divides the width, if a large one does, since masked loads
    take half as long again."""
    whole = min(most, width & -width)
    return whole if whole >= _LEAST_BLOCK else min(most, triton.next_power_of_2(width))


@triton.jit
def _round_rows_kernel(
    x,
    magnitudes,
    codes,
    scales,
    x_stride,
    magnitudes_stride,
    WIDTH: tl.constexpr,
    NUM_MAGNITUDES: tl.constexpr,
    BLOCK: tl.constexpr,
    MAGNITUDES_BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    DIVISOR: tl.constexpr,
    LEAST: tl.constexpr,
    GREATEST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x += row * x_stride
    codes += row * WIDTH
    columns = tl.arange(0, BLOCK)
    start_after_previous(IS_DEPENDENT)
    scale = scale_of(largest_of(magnitudes + row * magnitudes_stride, NUM_MAGNITUDES, MAGNITUDES_BLOCK), DIVISOR)
    if part == 0:
        tl.store(scales + row, scale)
    for start in tl.range(part * BLOCK, WIDTH, PARTS * BLOCK):
        value = load_part(x, start + columns, WIDTH % BLOCK == 0, WIDTH)
        code = to_codes(value.to(tl.float32), scale, codes.dtype.element_ty, LEAST, GREATEST)
        store_part(codes, start + columns, code, WIDTH % BLOCK == 0, WIDTH)


@triton.jit
def largest_of(numbers, NUM: tl.constexpr, BLOCK: tl.constexpr):
    """The largest magnitude of so many, which lie one behind the other."""
    columns = tl.arange(0, BLOCK)
    greatest = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, NUM, BLOCK):
        greatest = greater_magnitudes(greatest, load_part(numbers, start + columns, start + BLOCK <= NUM, NUM))
    return largest_magnitude(greatest, axis=0)


@triton.jit
def round_whole_rows_kernel(
    x,
    codes,
    scales,
    x_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_GATED: tl.constexpr,
    DIVISOR: tl.constexpr,
    LEAST: tl.constexpr,
    GREATEST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    codes += row * WIDTH
    columns = tl.arange(0, BLOCK)
    start_after_previous(IS_DEPENDENT)
    values = ()  # of every part, in the activations' type: two to a register
    greatest = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        value = load_part(x, start + columns, start + BLOCK <= WIDTH, WIDTH)
        if IS_GATED:
            value = let_through(value, load_part(x + WIDTH, start + columns, start + BLOCK <= WIDTH, WIDTH))
        greatest = greater_magnitudes(greatest, value)
        values = values + (value,)
    scale = scale_of(largest_magnitude(greatest, axis=0), DIVISOR)
    tl.store(scales + row, scale)
    for part in tl.static_range((WIDTH + BLOCK - 1) // BLOCK):
        code = to_codes(values[part].to(tl.float32), scale, codes.dtype.element_ty, LEAST, GREATEST)
        store_part(codes, part * BLOCK + columns, code, part * BLOCK + BLOCK <= WIDTH, WIDTH)
