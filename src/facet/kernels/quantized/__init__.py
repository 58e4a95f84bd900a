"""Products with matrices that are kept in four or eight bits, and rows looked up in such tables.

`matrix.py` has the tensors, `rounding.py` what happens to inputs, `reference.py` the definition, `cpu.py` what a
processor does instead.
"""

from torch import Tensor

from facet.kernels.quantized import cpu, reference
from facet.kernels.quantized.matrix import QuantizedMatrix, join_rows, stack
from facet.kernels.quantized.reference import Product, look_up

__all__ = ["Product", "QuantizedMatrix", "join_rows", "linear", "look_up", "stack"]


def linear(x: Tensor, matrix: QuantizedMatrix, product: Product) -> Tensor:
    """round(x) [rows, inputs] @ values^T, in x's type. Where tiles are multiplied in float32, `product` does it."""
    if x.is_cuda:
        return reference.linear(x, matrix, product)
    return cpu.linear(x, matrix, product)
