"""Products with matrices of any format on a GPU: codes are brought to the type of activations.

Few rows and many outputs are multiplied by the kernel that does so (`few_rows.py`); for others, some outputs at a time
are brought to memory, and another product takes them. Values are rounded to that type, which a kernel for one format
need not do. The host never waits, so that graphs can hold such a product.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.reference import Product
from facet.kernels.quantized.rounding import round_inputs, round_outputs

# A slice of widened rows: enough for a product to be worth its launch, and little beside a model.
_SLICE_BYTES = 64 << 20
# The first capability that multiplies bfloat16 matrices.
_AMPERE = (8, 0)


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels serve. Float32 is for checking models, not for serving them: there the definition is
    computed."""
    return device.type == "cuda" and dtype.itemsize == 2 and torch.cuda.get_device_capability(device) >= _AMPERE


def linear(x: Tensor, matrix: QuantizedMatrix, product: Product, *, in_one_chain: bool) -> Tensor:
    """round(x) [rows, inputs] @ values^T, in x's type. `in_one_chain`: whether sums must be one chain
    (`linear/chain.py`)."""
    from facet.kernels.quantized import few_rows  # no Triton without a GPU
    from facet.kernels.quantized.widen import widen

    inputs = round_inputs(x, matrix)
    if matrix.order is not None:
        inputs = inputs[:, matrix.order.long()]
    if few_rows.serves(len(x), matrix.num_rows) and (not in_one_chain or few_rows.is_one_chain(x.device)):
        return round_outputs(few_rows.linear(inputs, matrix), matrix)
    parts = [product(inputs, widen(matrix.rows(rows), x.dtype)) for rows in _slices(matrix)]
    return round_outputs(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1), matrix)


def _slices(matrix: QuantizedMatrix) -> Iterator[slice]:
    size = max(1, _SLICE_BYTES // (2 * matrix.num_inputs))
    for start in range(0, matrix.num_rows, size):
        yield slice(start, start + size)
