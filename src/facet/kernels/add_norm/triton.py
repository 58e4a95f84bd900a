"""The norms around a residual add in Triton: each row is read once, and each result written once.

Values are rounded to the activations' type wherever the reference, whose every operation writes a tensor, rounds them.
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.rms_norm.triton import (
    RowTile,
    first_rows,
    load_weight,
    normalised,
    rounded,
    row_tile,
    store_rows,
)
from facet.kernels.rounded_rows import NO_CODES, RoundedRows, RowCodes


def add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None = None,
    tile: RowTile | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`tile`, here and below: None: chosen by the number of rows."""
    normed = None if next_weight is None else torch.empty_like(residual, memory_format=torch.contiguous_format)
    new = _run(residual, update, update_weight, next_weight, eps, scale, tile, normed, None, NO_CODES)
    return new, normed


def rounded_add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    scale: Tensor | None,
    codes: RowCodes,
    tile: RowTile | None = None,
) -> tuple[Tensor, RoundedRows]:
    """Like `add_norm`, with the second result rounded to eight bits."""
    rows = codes.empty(residual)
    new = _run(residual, update, update_weight, next_weight, eps, scale, tile, rows.codes, rows.scales, codes.constants)
    return new, rows


def _run(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None,
    tile: RowTile | None,
    normed: Tensor | None,
    scales: Tensor | None,
    constants: Mapping[str, float],
) -> Tensor:
    residual, update = residual.contiguous(), update.contiguous()
    width = residual.shape[-1]
    num_rows = residual.numel() // width
    tile = tile or row_tile(width, num_rows)
    new = torch.empty_like(residual)
    add_norm_kernel[tile.grid(num_rows)](
        residual, update, update_weight, next_weight, scale, new, normed, scales, num_rows, eps,
        WIDTH=width, **tile.constants, **constants, num_warps=tile.num_warps, **launch_options(residual.device),
    )  # fmt: skip
    return new


def sum_of_norms(
    a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float, tile: RowTile | None = None
) -> Tensor:
    a, b = a.contiguous(), b.contiguous()
    width = a.shape[-1]
    num_rows = a.numel() // width
    tile = tile or row_tile(width, num_rows)
    total = torch.empty_like(a)
    sum_of_norms_kernel[tile.grid(num_rows)](
        a, a_weight, b, b_weight, total, num_rows, eps,
        WIDTH=width, **tile.constants, num_warps=tile.num_warps, **launch_options(a.device),
    )  # fmt: skip
    return total


@triton.jit(do_not_specialize=["num_rows"])
def add_norm_kernel(
    residual, update, update_weight, next_weight, scale, new, normed, scales, num_rows, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WEIGHTS_AHEAD: tl.constexpr, STAGES: tl.constexpr,
    DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    # At once: the product that follows has room beside the one before. Called after the wait, a step of E4B takes 3.40
    # and not 3.35 milliseconds with one request, 4.17 and not 4.11 with 32.
    let_next_start(IS_DEPENDENT)
    rows, columns, mask = first_rows(num_rows, WIDTH, ROWS, BLOCK, STAGES)
    update_factor, next_factor, stream_factor = None, None, None
    if WEIGHTS_AHEAD:
        update_factor = load_weight(update_weight, columns, mask)
        if next_weight is not None:
            next_factor = load_weight(next_weight, columns, mask)
    if scale is not None:
        stream_factor = tl.load(scale).to(tl.float32)
    wait_for_previous(IS_DEPENDENT)
    weights = (update_weight, next_weight)
    factors = (update_factor, next_factor, stream_factor)
    results = (new, normed, scales)
    if STAGES == 0:
        _add_norm_of(
            residual, update, weights, factors, results, rows, columns, mask, rows < num_rows, eps,
            WIDTH, DIVISOR, LEAST, GREATEST,
        )  # fmt: skip
    else:
        for row in tl.range(tl.program_id(0), num_rows, tl.num_programs(0), num_stages=STAGES):
            rows = row + tl.arange(0, 1)[:, None]
            _add_norm_of(
                residual, update, weights, factors, results, rows, columns, mask, rows >= 0, eps,
                WIDTH, DIVISOR, LEAST, GREATEST,
            )  # fmt: skip


@triton.jit
def _add_norm_of(
    residual, update, weights, factors, results, rows, columns, mask, is_row, eps,
    WIDTH: tl.constexpr, DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr,
):  # fmt: skip
    """Adds and normalises the rows of a tile. Factors are weights that were loaded, or None."""
    update_weight, next_weight = weights
    update_factor, next_factor, stream_factor = factors
    new, normed, scales = results
    places = rows.to(tl.int64) * WIDTH + columns
    added = tl.load(update + places, mask=mask, other=0.0).to(tl.float32)
    stream = tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
    added = normalised(added, eps, WIDTH)
    if update_factor is None:
        update_factor = load_weight(update_weight, columns, mask)
    stream = rounded(stream + rounded(added * update_factor, new), new)
    if stream_factor is not None:
        stream = rounded(stream * stream_factor, new)
    tl.store(new + places, stream.to(new.dtype.element_ty), mask=mask)
    if next_weight is not None:
        stream = normalised(stream, eps, WIDTH)
        if next_factor is None:
            next_factor = load_weight(next_weight, columns, mask)
        stream = (stream * next_factor).to(new.dtype.element_ty)
        store_rows(stream, normed + places, mask, scales, rows, is_row, DIVISOR, LEAST, GREATEST)


@triton.jit(do_not_specialize=["num_rows"])
def sum_of_norms_kernel(
    a, a_weight, b, b_weight, total, num_rows, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WEIGHTS_AHEAD: tl.constexpr, STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_DEPENDENT)
    rows, columns, mask = first_rows(num_rows, WIDTH, ROWS, BLOCK, STAGES)
    a_factor, b_factor = None, None
    if WEIGHTS_AHEAD:
        a_factor = load_weight(a_weight, columns, mask)
        b_factor = load_weight(b_weight, columns, mask)
    wait_for_previous(IS_DEPENDENT)
    weights, factors = (a_weight, b_weight), (a_factor, b_factor)
    if STAGES == 0:
        _sum_of_norms_of(a, b, weights, factors, total, rows, columns, mask, eps, WIDTH)
    else:
        for row in tl.range(tl.program_id(0), num_rows, tl.num_programs(0), num_stages=STAGES):
            rows = row + tl.arange(0, 1)[:, None]
            _sum_of_norms_of(a, b, weights, factors, total, rows, columns, mask, eps, WIDTH)


@triton.jit
def _sum_of_norms_of(a, b, weights, factors, total, rows, columns, mask, eps, WIDTH: tl.constexpr):
    """Adds the norms of the rows of a tile. Factors are weights that were loaded, or None."""
    a_weight, b_weight = weights
    a_factor, b_factor = factors
    places = rows.to(tl.int64) * WIDTH + columns
    first = tl.load(a + places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(b + places, mask=mask, other=0.0).to(tl.float32)
    first = normalised(first, eps, WIDTH)
    second = normalised(second, eps, WIDTH)
    if a_factor is None:
        a_factor = load_weight(a_weight, columns, mask)
        b_factor = load_weight(b_weight, columns, mask)
    first = rounded(first * a_factor, total)
    second = rounded(second * b_factor, total)
    tl.store(total + places, (first + second).to(total.dtype.element_ty), mask=mask)
