"""Products on a GPU with matrices of 4-bit codes whose inputs are not rounded.

Few rows are bound by reading the codes: `few_rows_kernel.py` multiplies by them as they are, and `ring_kernel.py`
and `ring_16_kernel.py` do so where they come to them through shared memory. For more rows, `wide_kernel.py` brings them
to bfloat16 on their way to the tensor cores. For many, slices of the matrix are brought to bfloat16 and multiplied by
cuBLAS. Of experts, few rows of each are multiplied by codes as they are, many by values made of some experts at a time
(`experts.py`). Codes are put into an order of their own when a model is loaded (`shuffled.py`). They are INT4, NVFP4's
e2m1, or those of GGUF's Q4_K, which have minimums.

The first three give a row the same bits in any company, the first of them for any number of rows. The others round
values to bfloat16 before they are multiplied.
"""

from typing import Protocol

import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.quantized.int4.shuffled import (
    ShuffledInt4,
    can_shuffle,
    shuffle,
    shuffled_bytes,
    unshuffle,
)
from facet.kernels.quantized.int4.tuning import (
    MAX_FEW_ROWS,
    MAX_FEW_ROWS_OF_EXPERT,
    MAX_WIDE_ROWS,
    ROW_KINDS,
    most_ring_rows,
)
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.reference import Product
from facet.kernels.quantized.shuffled_product import multiply_values

__all__ = [
    "MAX_FEW_ROWS",
    "ShuffledInt4",
    "can_shuffle",
    "choose_kernels",
    "expert_linear",
    "multiply",
    "run_experts",
    "run_mixed_experts",
    "runs_on",
    "shuffle",
    "shuffled_bytes",
    "unshuffle",
]

_AMPERE, _HOPPER = (8, 0), 9


class Kernels(Protocol):
    """The products of one kernel."""

    def multiply(self, x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor | None = None, /) -> Tensor: ...


def runs_on(device: torch.device) -> bool:
    """Whether this is a GPU that multiplies bfloat16 matrices."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE


def multiply(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor | None = None, most_few_rows: float = MAX_FEW_ROWS
) -> Tensor:
    """x [rows, inputs] @ values^T; of a gated matrix gelu_tanh(gate) * up, [rows, width]; with a per-layer input, which
    is [rows, outputs], gelu_tanh of the product times that.

    `most_few_rows`: infinity where company must change no bit.
    """
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is not None:
        return kernels.multiply(x, matrix, per_layer_input)
    from facet.kernels.quantized.int4.dequantize import dequantize

    return multiply_values(x, matrix, per_layer_input, dequantize)


def choose_kernels(x: Tensor, matrix: ShuffledInt4, most_few_rows: float) -> Kernels | None:
    """The kernels that multiply these rows by codes. None: there are so many that values are made of the codes
    first."""
    # Imported here: machines without a GPU need no Triton.
    from facet.kernels.quantized.int4 import few_rows, wide

    num_rows = x.shape[0]
    if num_rows <= most_few_rows:
        if num_rows <= _most_ring_rows(matrix) and runs_on_hopper(x.device):
            from facet.kernels.quantized.int4 import ring

            if ring.can_run(x, matrix):
                return ring
        return few_rows
    if x.dtype != torch.bfloat16:
        return None
    if torch.cuda.get_device_capability(x.device)[0] == _HOPPER:  # no other has the wide kernel's products
        return wide if num_rows <= MAX_WIDE_ROWS else None
    return few_rows if num_rows <= ROW_KINDS[-1] else None


def _most_ring_rows(matrix: ShuffledInt4) -> int:
    """Rings of 16 rows have neither values with scales nor minimums."""
    most = most_ring_rows(matrix.num_tiles, matrix.num_blocks)
    return most if matrix.factors is None and not matrix.has_minimums else min(most, MAX_FEW_ROWS)


def run_experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: ShuffledInt4,
    down: ShuffledInt4,
    most_few_rows: float = MAX_FEW_ROWS,
) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))), gate and up in one gated matrix."""
    from facet.kernels.quantized.int4 import experts

    assert gate_up.is_gated, "gates and ups have to be interleaved"
    if x.shape[0] == 0:
        return torch.empty_like(x)
    x, weights, chosen = x.contiguous(), weights.contiguous(), chosen.contiguous()
    most_pairs = max(MAX_FEW_ROWS_OF_EXPERT, most_few_rows) * gate_up.codes.shape[0]
    run = experts.run_few if chosen.numel() <= most_pairs else experts.run_many
    return run(x, weights, chosen, gate_up, down)


def run_mixed_experts(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: ShuffledInt4, down: QuantizedMatrix, *, in_one_chain: bool
) -> Tensor:
    """Like `run_experts`, with a second matrix that the kernel for any format multiplies by."""
    from facet.kernels.quantized.int4 import experts

    assert gate_up.is_gated, "gates and ups have to be interleaved"
    if x.shape[0] == 0:
        return torch.empty_like(x)
    x, weights, chosen = x.contiguous(), weights.contiguous(), chosen.contiguous()
    return experts.run_mixed(x, weights, chosen, gate_up, down, in_one_chain=in_one_chain)


def expert_linear(x: Tensor, matrices: ShuffledInt4, expert: int, product: Product) -> Tensor:
    """x [rows, inputs] @ values^T of one expert; of a gated matrix gates, then ups. `product` multiplies by them."""
    from facet.kernels.quantized.int4.dequantize import dequantize

    return product(x, dequantize(matrices.experts(expert), x.dtype))
