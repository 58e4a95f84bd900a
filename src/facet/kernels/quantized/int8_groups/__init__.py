"""Products on a GPU with matrices of 8-bit codes in groups, whose inputs are not rounded: GGUF's Q8_0, Q5_0, Q6_K and
Q5_K, and others with a scale of 16 bits for every 32, 64 or 128 inputs.

Few rows are bound by reading the codes: `few_rows_kernel.py` multiplies by them as they are, and `ring_kernel.py` does
so where they come to it through shared memory. Both give a row the same bits in any company. For some tens of rows,
codes become bfloat16 values on their way to tensor cores (`wide_kernel.py`), which rounds them; for many rows, slices
of the matrix do so in memory, and cuBLAS multiplies by them. Codes are put into an order of their own when a model is
loaded (`shuffled.py`).
"""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.per_layer_input import gate_per_layer_input
from facet.kernels.quantized.int4 import runs_on
from facet.kernels.quantized.int8_groups.shuffled import (
    TILE_OUT,
    ShuffledInt8,
    can_shuffle,
    shuffle,
    shuffled_bytes,
    unshuffle,
)
from facet.kernels.quantized.int8_groups.tuning import (
    MAX_FEW_ROWS,
    MAX_FEW_ROWS_ELSEWHERE,
    MAX_WIDE_ROWS,
    most_rows_before_wide,
)

__all__ = [
    "MAX_FEW_ROWS",
    "MAX_WIDE_ROWS",
    "ShuffledInt8",
    "can_shuffle",
    "choose_kernels",
    "gated_input_linear",
    "geglu_linear",
    "in_slices",
    "linear",
    "look_up",
    "runs_on",
    "shuffle",
    "shuffled_bytes",
    "slices",
    "unshuffle",
]

# Of a slice in bfloat16: large enough for cuBLAS, and little beside a model.
_SLICE_BYTES = 64 << 20


class Kernels(Protocol):
    """The products of one kernel."""

    def linear(self, x: Tensor, matrix: ShuffledInt8) -> Tensor: ...
    def geglu_linear(self, x: Tensor, matrix: ShuffledInt8) -> Tensor: ...
    def gated_input_linear(self, x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor) -> Tensor: ...


def linear(x: Tensor, matrix: ShuffledInt8, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """x [rows, inputs] @ values^T. `most_few_rows`, here and below: infinity where company must change no bit."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    return in_slices(x, matrix, functional.linear) if kernels is None else kernels.linear(x, matrix)


def geglu_linear(x: Tensor, matrix: ShuffledInt8, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """gelu_tanh(gate) * up of a gated matrix, [rows, width]."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is None:
        return in_slices(x, matrix, lambda x, values: geglu(functional.linear(x, values)))
    return kernels.geglu_linear(x, matrix)


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor, most_few_rows: float = MAX_FEW_ROWS
) -> Tensor:
    """gelu_tanh(x @ values^T) * per_layer_input, the latter [rows, outputs]."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is None:
        return gate_per_layer_input(in_slices(x, matrix, functional.linear), per_layer_input)
    return kernels.gated_input_linear(x, matrix, per_layer_input)


def look_up(ids: Tensor, matrix: ShuffledInt8) -> Tensor:
    """Rows of a table in float32, [ids, width]; ids past its end take row 0."""
    from facet.kernels.quantized.int8_groups import dequantize

    return dequantize.look_up(ids, matrix)


def choose_kernels(x: Tensor, matrix: ShuffledInt8, most_few_rows: float) -> Kernels | None:
    """Those that multiply these rows by codes. None: there are so many that values are made of the codes first."""
    if x.dtype != torch.bfloat16:
        return None
    # Imported here and below: machines without a GPU need no Triton.
    from facet.kernels.quantized.int8_groups import few_rows, ring, wide

    num_rows, is_hopper = x.shape[0], runs_on_hopper(x.device)
    has_wide = is_hopper and wide.can_run(matrix)
    if has_wide and most_few_rows < math.inf:
        most_few_rows = min(most_few_rows, most_rows_before_wide(matrix.num_tiles, matrix.num_blocks))
    if num_rows <= most_few_rows:
        return ring if is_hopper and ring.can_run(x, matrix) else few_rows
    if has_wide:
        return wide if num_rows <= MAX_WIDE_ROWS else None
    return few_rows if num_rows <= MAX_FEW_ROWS_ELSEWHERE else None


def in_slices(x: Tensor, matrix: ShuffledInt8, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `product` makes of x and the values, slice by slice."""
    from facet.kernels.quantized.int8_groups.dequantize import dequantize

    parts = [product(x, dequantize(part, x.dtype)) for part in slices(matrix)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def slices(matrix: ShuffledInt8) -> Iterator[ShuffledInt8]:
    size = max(1, _SLICE_BYTES // (2 * matrix.num_inputs * TILE_OUT)) * TILE_OUT
    for start in range(0, matrix.num_rows, size):
        yield matrix.rows(slice(start, min(start + size, matrix.num_rows)))
