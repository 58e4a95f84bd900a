"""Products on a GPU with matrices of 4-bit codes whose inputs are not rounded.

Few rows are bound by reading the codes: `kernel.py` multiplies by them as they are. For more, `wide_kernel.py` brings
them to bfloat16 on their way to the tensor cores. For many, slices of the matrix are brought to bfloat16 and multiplied
by cuBLAS. Codes are put into an order of their own when a model is loaded (`shuffled.py`).

The first gives a row the same bits in any company, for any number of rows. The others round values to bfloat16 before
they are multiplied.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.per_layer_input import gate_per_layer_input
from facet.kernels.quantized.int4.shuffled import TILE_OUT, ShuffledInt4, can_shuffle, shuffle, unshuffle
from facet.kernels.quantized.int4.tuning import MAX_FEW_ROWS, MAX_WIDE_ROWS

__all__ = [
    "MAX_FEW_ROWS",
    "ShuffledInt4",
    "can_shuffle",
    "gated_input_linear",
    "geglu_linear",
    "linear",
    "shuffle",
    "unshuffle",
]

# Of a slice in bfloat16: large enough for cuBLAS, and little beside a model.
_SLICE_BYTES = 64 << 20


def linear(x: Tensor, matrix: ShuffledInt4, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """x [rows, inputs] @ values^T. `most_few_rows`, here and below: infinity where company must change no bit."""
    if x.shape[0] <= most_few_rows:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.quantized.int4 import few_rows

        return few_rows.linear(x, matrix)
    if x.shape[0] <= MAX_WIDE_ROWS and x.dtype == torch.bfloat16:
        from facet.kernels.quantized.int4 import wide

        return wide.linear(x, matrix)
    return _in_slices(x, matrix, functional.linear)


def geglu_linear(x: Tensor, matrix: ShuffledInt4, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """gelu_tanh(gate) * up of a gated matrix, [rows, width]."""
    if x.shape[0] <= most_few_rows:
        from facet.kernels.quantized.int4 import few_rows

        return few_rows.geglu_linear(x, matrix)
    if x.shape[0] <= MAX_WIDE_ROWS and x.dtype == torch.bfloat16:
        from facet.kernels.quantized.int4 import wide

        return wide.geglu_linear(x, matrix)
    return _in_slices(x, matrix, lambda x, values: geglu(functional.linear(x, values)))


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor, most_few_rows: float = MAX_FEW_ROWS
) -> Tensor:
    """gelu_tanh(x @ values^T) * per_layer_input, the latter [rows, outputs]."""
    if x.shape[0] <= most_few_rows:
        from facet.kernels.quantized.int4 import few_rows

        return few_rows.gated_input_linear(x, matrix, per_layer_input)
    if x.shape[0] <= MAX_WIDE_ROWS and x.dtype == torch.bfloat16:
        from facet.kernels.quantized.int4 import wide

        return wide.gated_input_linear(x, matrix, per_layer_input)
    return gate_per_layer_input(_in_slices(x, matrix, functional.linear), per_layer_input)


def _in_slices(x: Tensor, matrix: ShuffledInt4, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `product` makes of x and the values, slice by slice."""
    from facet.kernels.quantized.int4.dequantize import dequantize

    parts = [product(x, dequantize(part, x.dtype)) for part in _slices(matrix)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _slices(matrix: ShuffledInt4) -> Iterator[ShuffledInt4]:
    size = max(1, _SLICE_BYTES // (2 * matrix.num_inputs * TILE_OUT)) * TILE_OUT
    for start in range(0, matrix.num_rows, size):
        yield matrix.rows(slice(start, min(start + size, matrix.num_rows)))
