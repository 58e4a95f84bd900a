"""The norms around a residual add in Triton, for many rows whose results are rounded to eight bits.

A program has one row, in parts that fill its threads. One block as wide as the row, as in `triton.py`, would be half as
large again as the rows of 31B, and codes would change hands on their way to memory: they are half as wide as what they
are made of.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.rms_norm.triton import load_part, rounded, store_part
from facet.kernels.rounded_rows import RoundedRows, RowCodes
from facet.kernels.to_eight_bits import greater_magnitudes, largest_magnitude, scale_of, to_codes

# Rows up to this width are in parts of 1024 columns, longer ones of 2048: a wide load for each thread of 4 or 8 warps.
_LONGEST_OF_FOUR_WARPS = 4096


def rounded_add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    scale: Tensor | None,
    codes: RowCodes,
) -> tuple[Tensor, RoundedRows]:
    residual, update = residual.contiguous(), update.contiguous()
    num_rows, width = residual.shape
    block = 1024 if width <= _LONGEST_OF_FOUR_WARPS else 2048
    new, rows = torch.empty_like(residual), codes.empty(residual)
    rounded_add_norm_kernel[(num_rows,)](
        residual, update, update_weight, next_weight, scale, new, rows.codes, rows.scales, eps,
        WIDTH=width, BLOCK=block, **codes.constants, num_warps=block // 256, **launch_options(residual.device),
    )  # fmt: skip
    return new, rows


@triton.jit
def rounded_add_norm_kernel(
    residual, update, update_weight, next_weight, scale, new, codes, scales, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    DIVISOR: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    residual += row * WIDTH
    update += row * WIDTH
    new += row * WIDTH
    codes += row * WIDTH
    columns = tl.arange(0, BLOCK)
    num_parts: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    if scale is not None:
        stream_factor = tl.load(scale).to(tl.float32)
    start_after_previous(IS_DEPENDENT)
    # Everything is asked for before the first sum. Parts lie in registers in the type of activations.
    updates, streams = (), ()
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        update_part = load_part(update, start + columns, start + BLOCK <= WIDTH, WIDTH)
        updates = updates + (update_part,)
        streams = streams + (load_part(residual, start + columns, start + BLOCK <= WIDTH, WIDTH),)
        squares += update_part.to(tl.float32) * update_part.to(tl.float32)
    inverse = _inverse_rms(squares, eps, WIDTH)
    new_streams = ()
    squares = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(num_parts):
        places = part * BLOCK + columns
        weight = load_part(update_weight, places, part * BLOCK + BLOCK <= WIDTH, WIDTH)
        stream = streams[part].to(tl.float32) + rounded(updates[part].to(tl.float32) * inverse * weight, new)
        stream = rounded(stream, new)
        if scale is not None:
            stream = rounded(stream * stream_factor, new)
        store_part(new, places, stream.to(new.dtype.element_ty), part * BLOCK + BLOCK <= WIDTH, WIDTH)
        squares += stream * stream
        new_streams = new_streams + (stream.to(new.dtype.element_ty),)
    inverse = _inverse_rms(squares, eps, WIDTH)
    normed = ()
    greatest = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(num_parts):
        weight = load_part(next_weight, part * BLOCK + columns, part * BLOCK + BLOCK <= WIDTH, WIDTH)
        value = (new_streams[part].to(tl.float32) * inverse * weight).to(new.dtype.element_ty)
        greatest = greater_magnitudes(greatest, value)
        normed = normed + (value,)
    row_scale = scale_of(largest_magnitude(greatest, axis=0), DIVISOR)
    tl.store(scales + row, row_scale)
    for part in tl.static_range(num_parts):
        code = to_codes(normed[part].to(tl.float32), row_scale, codes.dtype.element_ty, LEAST, GREATEST)
        store_part(codes, part * BLOCK + columns, code, part * BLOCK + BLOCK <= WIDTH, WIDTH)


@triton.jit
def _inverse_rms(squares, eps, WIDTH: tl.constexpr):
    return tl.rsqrt(tl.sum(squares, axis=0) / WIDTH + eps)
