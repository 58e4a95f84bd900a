"""Products with matrices that are kept in four or eight bits, and rows looked up in such tables.

`matrix.py` has the tensors, `rounding.py` what happens to inputs, `reference.py` the definition, `cpu.py` what a
processor does instead, with 4-bit codes in an order of their own in `packed_int4.py`. On a GPU `eight_bits/`,
`int8_groups/` and `int4/` multiply by the codes of the most common formats, the latter two in an order of their own
(`shuffled/`); matrices of all others are brought to the type of activations, some rows at a time (`gpu.py`).
"""

from torch import Tensor

from facet.kernels.quantized import cpu, experts, gpu, reference
from facet.kernels.quantized.gpu import serves as has_kernels
from facet.kernels.quantized.matrix import QuantizedMatrix, join_rows, stack
from facet.kernels.quantized.reference import Product, look_up

__all__ = ["Product", "QuantizedMatrix", "experts", "has_kernels", "join_rows", "linear", "look_up", "stack"]


def linear(x: Tensor, matrix: QuantizedMatrix, product: Product, *, in_one_chain: bool) -> Tensor:
    """round(x) [rows, inputs] @ values^T, in x's type. Where values are multiplied, `product` does it, and where a
    kernel of this room takes its place for some numbers of rows, its sums are `in_one_chain` if need be."""
    if has_kernels(x.device, x.dtype):
        return gpu.linear(x, matrix, product, in_one_chain=in_one_chain)
    if x.is_cuda:
        return reference.linear(x, matrix, product)
    return cpu.linear(x, matrix, product, in_one_chain=in_one_chain)
