"""Products on a GPU with matrices of 8-bit codes in groups, whose inputs are not rounded: GGUF's Q8_0, Q5_0, Q6_K and
Q5_K, and others with a scale of 16 bits for every 32, 64 or 128 inputs.

Few rows are bound by reading the codes: `few_rows_kernel.py` multiplies by them as they are, and `ring_kernel.py` does
so where they come to it through shared memory. Both give a row the same bits in any company. For some tens of rows,
codes become bfloat16 values on their way to tensor cores (`wide_kernel.py`), which rounds them; for many rows, slices
of the matrix do so in memory, and cuBLAS multiplies by them. Codes are put into an order of their own when a model is
loaded (`shuffled.py`).
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.quantized.int4 import runs_on
from facet.kernels.quantized.int8_groups.shuffled import (
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
from facet.kernels.quantized.shuffled_product import multiply_values

__all__ = [
    "MAX_FEW_ROWS",
    "MAX_WIDE_ROWS",
    "ShuffledInt8",
    "can_shuffle",
    "choose_kernels",
    "look_up",
    "multiply",
    "runs_on",
    "shuffle",
    "shuffled_bytes",
    "unshuffle",
]


class Kernels(Protocol):
    """The products of one kernel."""

    def multiply(self, x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, /) -> Tensor: ...


def multiply(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, most_few_rows: float = MAX_FEW_ROWS
) -> Tensor:
    """x [rows, inputs] @ values^T; of a gated matrix gelu_tanh(gate) * up, [rows, width]; with a per-layer input, which
    is [rows, outputs], gelu_tanh of the product times that.

    `most_few_rows`: infinity where company must change no bit.
    """
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is not None:
        return kernels.multiply(x, matrix, per_layer_input)
    from facet.kernels.quantized.int8_groups.dequantize import dequantize

    return multiply_values(x, matrix, per_layer_input, dequantize)


def look_up(ids: Tensor, matrix: ShuffledInt8) -> Tensor:
    """Rows of a table in float32, [ids, width]; ids past its end take row 0."""
    from facet.kernels.quantized.int8_groups import dequantize

    return dequantize.look_up(ids, matrix)


def choose_kernels(x: Tensor, matrix: ShuffledInt8, most_few_rows: float) -> Kernels | None:
    """The kernels that multiply these rows by codes. None: there are so many that values are made of the codes
    first."""
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
