"""The norm in Triton, and what other kernels that work row by row share with it.

A program holds whole rows in registers, padded to a power of two, and reads each once: one long row, or several short
ones.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.hopper import num_multiprocessors
from facet.kernels.rounded_rows import NO_CODES, RoundedRows, RowCodes
from facet.kernels.to_eight_bits import scale_of, to_codes

# Elements of one program when rows are short: eight, which is one wide load, for each thread of four warps.
ELEMENTS_OF_SHORT_ROWS = 1024
# Up to about two long rows for each multiprocessor of a large GPU, a launch lasts as long as one program does.
FEW_ROWS = 256
# Where rows are taken in turn: one is worked on, the next two are on their way, and the one behind them is asked for in
# between. With 3, 8192 rows of 2560 take 48.1 and not 45.6 in add_norm, of 5376 98.1 and not 91.6.
STAGES_IN_TURN = 4
# From how many rows on they are taken in turn, by the block that a row is padded to. 512, 2048 and 8192 rows in turn,
# and each by a program of its own: of 5376 8.2 and 11.0, 24.5 and 40.9, 91.6 and 157.6 microseconds on an H200; of 2560
# 5.9 and 5.4, 14.4 and 14.7, 45.6 and 52.3.
_LEAST_IN_TURN = MappingProxyType({4096: 2048, 8192: FEW_ROWS + 1})
# They fit into the shared memory of small cards, and with 16 warps their registers into a multiprocessor.
_ELEMENTS_IN_TURN = 8192
# Of 3840, which fill their block, 8192 rows take 73.0 and not 65.7; of 2048 in a block of 2048 35.5 and 36.4.
_MOST_FILLED = 0.75
# The longest row a program may hold in its registers: 32 elements for each thread of sixteen warps.
LONGEST_ROW = 16384


class RowTile(NamedTuple):
    """What one program works on, and how."""

    num_rows: int
    block: int  # columns, a power of two
    num_warps: int
    weights_ahead: bool  # read weights before the sum over a row, rather than when they are needed
    # How many programs share all rows, each taking one after another; None: as many as there are tiles.
    num_programs: int | None = None

    def grid(self, num_rows: int) -> tuple[int]:
        num_tiles = triton.cdiv(num_rows, self.num_rows)
        return (num_tiles if self.num_programs is None else min(num_tiles, self.num_programs),)

    @property
    def constants(self) -> Mapping[str, int]:
        stages = 0 if self.num_programs is None else STAGES_IN_TURN
        return dict(ROWS=self.num_rows, BLOCK=self.block, WEIGHTS_AHEAD=self.weights_ahead, STAGES=stages)


def tile_of_few_rows(width: int) -> RowTile:
    """A tile for the shortest single program: as many threads as have something to do, and every load at once.

    The order of a sum over a row follows from the number of warps. Where a row's bits must not depend on the number of
    rows, many rows are worked on as few are.
    """
    assert width <= LONGEST_ROW, f"rows of {width} elements, and a program holds at most {LONGEST_ROW}"
    block = max(16, triton.next_power_of_2(width))
    if block <= ELEMENTS_OF_SHORT_ROWS:
        return RowTile(ELEMENTS_OF_SHORT_ROWS // block, block, num_warps=4, weights_ahead=True)
    return RowTile(1, block, num_warps=min(16, max(4, block // 256)), weights_ahead=True)


def row_tile(width: int, num_rows: int) -> RowTile:
    """The tile for so many rows. Where many are long, programs share a multiprocessor and hide each other's waits, so
    registers are what counts. A weight held through two sums would halve how many programs fit."""
    tile = tile_of_few_rows(width)
    if num_rows <= FEW_ROWS or tile.block <= ELEMENTS_OF_SHORT_ROWS:
        return tile
    return RowTile(1, tile.block, num_warps=min(16, max(4, tile.block // 1024)), weights_ahead=False)


def tile_of_any_rows(x: Tensor) -> RowTile:
    """Many long rows are worked on as few are, for the same bits, but one after another by as many programs as the GPU
    holds at a time: they read weights once, and while they work on a row the next ones are copied to shared memory.
    """
    width = x.shape[-1]
    tile = tile_of_few_rows(width)
    least = _LEAST_IN_TURN.get(tile.block)
    if least is None or x.numel() < least * width or width > _MOST_FILLED * tile.block:
        return tile
    is_loaded_alike = x.element_size() == 2 and width % 16 == 0
    if not is_loaded_alike or not _sums_alike(x.device):
        return tile
    # As many programs as have room for their registers: with 16 warps two of rows up to 4096, and one of longer ones.
    num_programs = _ELEMENTS_IN_TURN // tile.block
    return tile._replace(num_programs=num_programs * num_multiprocessors(x.device))


@cache
def _sums_alike(device: torch.device) -> bool:
    """Whether a loop leaves additions as they are: from Blackwell on, Triton makes pairs of some and not of others."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) < (10, 0)


class _Scaled(NamedTuple):
    """A second result: the norm without weight, times `scale` and `factor`."""

    scale: Tensor | None
    factor: float
    result: Tensor | None


_NOT_SCALED = _Scaled(None, 1.0, None)


def rows_in_runs(x: Tensor) -> Tensor:
    """A view [runs, rows per run, width] whose rows are contiguous. Copies only what has no such view."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x.reshape(-1, x.shape[-2] if x.dim() > 2 else 1, x.shape[-1])


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, tile: RowTile | None = None) -> Tensor:
    """`tile`, here and below: None: chosen by the number of rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run(x, weight, eps, tile, out, None, NO_CODES)
    return out


def router_norms(
    x: Tensor, scale: Tensor, factor: float, weight: Tensor | None, eps: float, tile: RowTile | None = None
) -> tuple[Tensor, Tensor | None]:
    scaled = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = None if weight is None else torch.empty_like(scaled)
    _run(x, weight, eps, tile, out, None, NO_CODES, _Scaled(scale, factor, scaled))
    return scaled, out


def rounded_rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, codes: RowCodes, tile: RowTile | None = None
) -> RoundedRows:
    """Rows [rows, width], rounded to eight bits after they were rounded to the activations' type."""
    rows = codes.empty(x)
    _run(x, weight, eps, tile, rows.codes, rows.scales, codes.constants)
    return rows


def _run(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    tile: RowTile | None,
    out: Tensor | None,
    scales: Tensor | None,
    constants: Mapping[str, float],
    scaled: _Scaled = _NOT_SCALED,
) -> None:
    rows = rows_in_runs(x)
    num_rows = rows.shape[0] * rows.shape[1]
    tile = tile or row_tile(x.shape[-1], num_rows)
    rms_norm_kernel[tile.grid(num_rows)](
        rows, weight, out, scales, *scaled, num_rows, rows.shape[1], rows.stride(0), rows.stride(1), eps,
        WIDTH=x.shape[-1], **tile.constants, **constants, num_warps=tile.num_warps, **launch_options(x.device),
    )  # fmt: skip


@triton.jit
def rounded(value, like):
    """`value` as the elements behind the pointer `like` would hold it, in float32 again."""
    return value.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def normalised(x, eps, WIDTH: tl.constexpr):
    """x / rms(x) over rows of a float32 tile; places past WIDTH hold zeros."""
    return x * tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)[:, None]


@triton.jit
def load_weight(weight, columns, mask):
    """A norm's weight, loaded for every row of a tile: a single one would have to be passed between threads."""
    return tl.load(weight + tl.broadcast_to(columns, mask.shape), mask=mask, other=0.0)


@triton.jit
def place_in_runs(rows, rows_per_run, run_stride, row_stride):
    """The places where rows begin in a tensor such as `rows_in_runs` returns. Rows are counted in 32 bits, which are
    divided faster than 64."""
    return (rows // rows_per_run).to(tl.int64) * run_stride + (rows % rows_per_run).to(tl.int64) * row_stride


@triton.jit
def load_part(x, columns, is_whole: tl.constexpr, WIDTH: tl.constexpr):
    """Some columns of a row that a program holds in several parts; the last may not be whole, and ends in zeros."""
    if is_whole:
        return tl.load(x + columns)
    else:
        return tl.load(x + columns, mask=columns < WIDTH, other=0.0)


@triton.jit
def store_part(out, columns, value, is_whole: tl.constexpr, WIDTH: tl.constexpr):
    """Stores some columns of a row that a program holds in several parts; the last may not be whole."""
    if is_whole:
        tl.store(out + columns, value)
    else:
        tl.store(out + columns, value, mask=columns < WIDTH)


@triton.jit
def store_rows(
    value, places, mask, scales, rows, is_row, DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr
):
    """Whole rows, zeros where nothing is, as they are; or where there are `scales`, rounded to codes of eight bits."""
    if scales is None:
        tl.store(places, value, mask=mask)
    else:
        wide = value.to(tl.float32)
        scale = scale_of(tl.max(tl.abs(wide), axis=1), DIVISOR)[:, None]
        tl.store(scales + rows, scale, mask=is_row)
        tl.store(places, to_codes(wide, scale, places.dtype.element_ty, LEAST, GREATEST), mask=mask)


@triton.jit
def first_rows(num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The rows of a program's tile, its columns, and what is there of both: of rows taken in turn, all are."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < WIDTH
    if STAGES == 0:
        mask = (rows < num_rows) & mask
    return rows, columns, mask


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x, weight, out, scales, scale, factor, scaled, num_rows, rows_per_run, run_stride, row_stride, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WEIGHTS_AHEAD: tl.constexpr, STAGES: tl.constexpr,
    DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = first_rows(num_rows, WIDTH, ROWS, BLOCK, STAGES)
    own_factor, scale_factor = None, None
    if WEIGHTS_AHEAD and weight is not None:
        own_factor = load_weight(weight, columns, mask)
    if WEIGHTS_AHEAD and scale is not None:
        scale_factor = load_weight(scale, columns, mask)
    start_after_previous(IS_DEPENDENT)
    strides = (rows_per_run, run_stride, row_stride)
    weights, factors = (weight, scale), (own_factor, scale_factor, factor)
    results = (out, scales, scaled)
    if STAGES == 0:
        _rms_norm_of(
            x, strides, weights, factors, results, rows, columns, mask, rows < num_rows, eps,
            WIDTH, DIVISOR, LEAST, GREATEST,
        )  # fmt: skip
    else:
        for row in tl.range(tl.program_id(0), num_rows, tl.num_programs(0), num_stages=STAGES):
            rows = row + tl.arange(0, 1)[:, None]
            _rms_norm_of(
                x, strides, weights, factors, results, rows, columns, mask, rows >= 0, eps,
                WIDTH, DIVISOR, LEAST, GREATEST,
            )  # fmt: skip


@triton.jit
def _rms_norm_of(
    x, strides, weights, factors, results, rows, columns, mask, is_row, eps,
    WIDTH: tl.constexpr, DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr,
):  # fmt: skip
    """Normalises the rows of a tile. The first two factors are weights that were loaded, or None."""
    rows_per_run, run_stride, row_stride = strides
    weight, scale = weights
    own_factor, scale_factor, factor = factors
    out, scales, scaled = results
    places = place_in_runs(rows, rows_per_run, run_stride, row_stride)
    value = tl.load(x + places + columns, mask=mask, other=0.0).to(tl.float32)
    value = normalised(value, eps, WIDTH)
    if weight is not None and own_factor is None:
        own_factor = load_weight(weight, columns, mask)
    if scale is not None:
        if scale_factor is None:
            scale_factor = load_weight(scale, columns, mask)
        scaled_value = rounded(rounded(value, x) * scale_factor, x)
    if weight is not None:
        value = value * own_factor
    out_places = rows.to(tl.int64) * WIDTH + columns
    if scale is not None:
        tl.store(scaled + out_places, (scaled_value * factor).to(x.dtype.element_ty), mask=mask)
    if out is not None:
        store_rows(value.to(x.dtype.element_ty), out + out_places, mask, scales, rows, is_row, DIVISOR, LEAST, GREATEST)
