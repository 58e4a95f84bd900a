"""The definition of products with quantized matrices, and of rows looked up in one.

A product brings tiles of a matrix to float32 and sums in float32; the whole matrix is never there at once. A scale that
a whole row has is applied to the sums.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.quantized.matrix import QuantizedMatrix, decode, decode_bytes
from facet.kernels.quantized.rounding import round_inputs, round_outputs

# Values of a tile in float32; in bfloat16 as many bytes. 256 rows of 2560: on an Arm processor, codes of four bits take
# 1.1 ns a value there, 1.6 in tiles of 64 rows and 1.7 in one piece. On two cores of an EPYC 9005, 65536 x 1536 in Q6_K
# and bfloat16 takes 30 ms for a row and 88 for 256, in tiles half as long 39 and 103.
TILE_VALUES = 1 << 19

Product = Callable[[Tensor, Tensor], Tensor]


def linear(
    x: Tensor, matrix: QuantizedMatrix, product: Product = functional.linear, dtype: torch.dtype = torch.float32
) -> Tensor:
    """round(x) [rows, inputs] @ values^T, in x's type. `product` multiplies by a tile, both in `dtype`."""
    inputs = round_inputs(x, matrix).to(dtype)
    if matrix.order is not None:
        inputs = inputs[:, matrix.order.long()]
    if matrix.format.code_bits == 4:
        inputs = torch.cat((inputs[:, 0::2], inputs[:, 1::2]), dim=-1)
    out = torch.empty(x.shape[0], matrix.num_rows, dtype=dtype, device=x.device)
    # Sums of fewer bits than float32's are rounded once only if scales are applied before.
    scales_sums = matrix.format.has_row_scales and dtype == torch.float32
    for rows in tiles(matrix, TILE_VALUES * 4 // dtype.itemsize):
        tile = matrix.rows(rows)
        products = product(inputs, _tile(tile, is_scaled=not scales_sums).to(dtype))
        out[:, rows] = products * tile.scales.float().t() if scales_sums else products
    return round_outputs(out.to(x.dtype), matrix)


def look_up(ids: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """Rows of a table in float32, [ids, width]."""
    return matrix.rows(ids).values()


def tiles(matrix: QuantizedMatrix, num_values: int) -> Iterator[slice]:
    """Rows of each tile. They depend on the matrix alone: a product adds in the same order for any number of rows."""
    num_rows = max(1, num_values // matrix.num_inputs)
    for start in range(0, matrix.num_rows, num_rows):
        yield slice(start, start + num_rows)


def _tile(matrix: QuantizedMatrix, *, is_scaled: bool) -> Tensor:
    """Values [outputs, inputs] in float32, or codes alone, in the order of the columns; where two codes share a byte,
    the even columns before the odd ones: taking bytes apart in place costs five times less than interleaving what they
    hold."""
    group = matrix.format.scales.group
    if matrix.format.code_bits == 8:
        codes = decode_bytes(matrix.codes)
        return matrix.scaled(codes, group) if is_scaled else codes
    halves = torch.stack((matrix.codes & 15, matrix.codes >> 4), dim=1)  # [outputs, 2, inputs / 2]
    numbers = decode(halves, matrix.format.codes)
    if is_scaled:
        numbers = matrix.scaled(numbers.transpose(0, 1), None if group is None else group // 2).transpose(0, 1)
    return numbers.flatten(1)
