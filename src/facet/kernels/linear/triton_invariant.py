"""Matrix products in Triton whose rows are bit for bit the same whatever other rows share the call.

A weight's shape alone decides how its product is cut into tiles: one compiled kernel serves one row and thousands. A
row is then multiplied by the same instructions in the same order over `in`, wherever in a tile it stands; the rows
beside it, or the zeros in their place, are other rows of the same matrix product and never meet it.

Tiles are a compromise. Few rows are bound by reading the weight, and want many programs with much on its way to each;
many rows want large tiles. A sum over `in` shared among programs would serve few rows better and cost memory for many.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# From this many outputs on, large tiles are still enough programs for one row.
_MANY_OUTPUTS = 8192
# Tiles of rows that take turns at a tile of the weight while it is in the cache.
_ROW_TILES_AT_ONCE = 8
# A kernel is compiled anew for a pointer that is less aligned than before.
_ALIGNMENT_BYTES = 16


class Tile(NamedTuple):
    """What one program computes, and how."""

    num_rows: int
    num_out: int
    num_in: int  # at a time
    num_warps: int
    num_stages: int


def choose_tile(num_out: int, num_in: int, element_size: int) -> Tile:
    """Not a function of the number of rows."""
    longest = max(16, triton.next_power_of_2(num_in))
    if element_size > 2:  # float32 is for checking models, not for serving them: tiles small enough to fit anywhere
        return Tile(32, 32, min(32, longest), num_warps=4, num_stages=2)
    if num_out >= _MANY_OUTPUTS:
        return Tile(128, 128, min(64, longest), num_warps=8, num_stages=4)
    return Tile(64, 64, min(128, longest), num_warps=4, num_stages=5)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in]. Sums are float32."""
    num_rows, num_in = x.shape
    num_out = weight.shape[0]
    assert weight.is_contiguous(), "a weight is contiguous"
    x = x.contiguous()
    if x.data_ptr() % _ALIGNMENT_BYTES:
        x = x.clone()
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return output
    tile = choose_tile(num_out, num_in, x.element_size())
    grid = (triton.cdiv(num_rows, tile.num_rows) * triton.cdiv(num_out, tile.num_out),)
    _product_kernel[grid](
        x,
        weight,
        output,
        num_rows,
        num_out,
        num_in,
        IS_WHOLE=num_in % tile.num_in == 0,
        BLOCK_ROWS=tile.num_rows,
        BLOCK_OUT=tile.num_out,
        BLOCK_IN=tile.num_in,
        ROW_TILES_AT_ONCE=_ROW_TILES_AT_ONCE,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return output


@triton.jit(do_not_specialize=["num_rows"])
def _product_kernel(
    x,
    weight,
    output,
    num_rows,
    num_out,
    num_in,
    IS_WHOLE: tl.constexpr,  # the inputs are a number of whole tiles
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    ROW_TILES_AT_ONCE: tl.constexpr,
):
    # Some tiles of rows pass along the whole weight together, then the next ones.
    num_at_most = ROW_TILES_AT_ONCE * tl.cdiv(num_out, BLOCK_OUT)
    num_row_tiles = tl.cdiv(num_rows, BLOCK_ROWS)
    first_row_tile = tl.program_id(0) // num_at_most * ROW_TILES_AT_ONCE
    inside = tl.program_id(0) % num_at_most
    num_at_once = tl.minimum(num_row_tiles - first_row_tile, ROW_TILES_AT_ONCE)
    rows = (first_row_tile + inside % num_at_once) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = inside // num_at_once * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    is_row = rows < num_rows
    row_starts = x + rows.to(tl.int64) * num_in
    # Beyond the last output a tile reads that output's weights again, which needs no mask; the store drops the result.
    weight_starts = weight + tl.minimum(columns, num_out - 1).to(tl.int64) * num_in

    sums = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    for start in range(0, num_in, BLOCK_IN):
        places = start + tl.arange(0, BLOCK_IN)
        if IS_WHOLE:
            x_tile = tl.load(row_starts[:, None] + places[None, :], mask=is_row[:, None], other=0.0)
            weight_tile = tl.load(weight_starts[None, :] + places[:, None])
        else:
            is_place = places < num_in
            x_tile = tl.load(row_starts[:, None] + places[None, :], mask=is_row[:, None] & is_place[None, :], other=0.0)
            weight_tile = tl.load(weight_starts[None, :] + places[:, None], mask=is_place[:, None], other=0.0)
        sums = tl.dot(x_tile, weight_tile, sums, input_precision="ieee")
    pointers = output + rows.to(tl.int64)[:, None] * num_out + columns[None, :]
    tl.store(pointers, sums.to(output.dtype.element_ty), mask=is_row[:, None] & (columns < num_out)[None, :])
