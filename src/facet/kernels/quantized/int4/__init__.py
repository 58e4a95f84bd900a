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

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.per_layer_input import gate_per_layer_input
from facet.kernels.quantized.int4.shuffled import (
    TILE_OUT,
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

__all__ = [
    "MAX_FEW_ROWS",
    "ShuffledInt4",
    "can_shuffle",
    "choose_kernels",
    "expert_linear",
    "gated_input_linear",
    "geglu_linear",
    "linear",
    "run_experts",
    "run_mixed_experts",
    "runs_on",
    "shuffle",
    "shuffled_bytes",
    "unshuffle",
]

_AMPERE, _HOPPER = (8, 0), 9
# Of a slice in bfloat16: large enough for cuBLAS, and little beside a model.
_SLICE_BYTES = 64 << 20


class Kernels(Protocol):
    """The products of one kernel."""

    def linear(self, x: Tensor, matrix: ShuffledInt4) -> Tensor: ...
    def geglu_linear(self, x: Tensor, matrix: ShuffledInt4) -> Tensor: ...
    def gated_input_linear(self, x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor) -> Tensor: ...


def runs_on(device: torch.device) -> bool:
    """Whether this is a GPU that multiplies bfloat16 matrices."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE


def linear(x: Tensor, matrix: ShuffledInt4, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """x [rows, inputs] @ values^T. `most_few_rows`, here and below: infinity where company must change no bit."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    return _in_slices(x, matrix, functional.linear) if kernels is None else kernels.linear(x, matrix)


def geglu_linear(x: Tensor, matrix: ShuffledInt4, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """gelu_tanh(gate) * up of a gated matrix, [rows, width]."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is None:
        return _in_slices(x, matrix, lambda x, values: geglu(functional.linear(x, values)))
    return kernels.geglu_linear(x, matrix)


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor, most_few_rows: float = MAX_FEW_ROWS
) -> Tensor:
    """gelu_tanh(x @ values^T) * per_layer_input, the latter [rows, outputs]."""
    kernels = choose_kernels(x, matrix, most_few_rows)
    if kernels is None:
        return gate_per_layer_input(_in_slices(x, matrix, functional.linear), per_layer_input)
    return kernels.gated_input_linear(x, matrix, per_layer_input)


def choose_kernels(x: Tensor, matrix: ShuffledInt4, most_few_rows: float) -> Kernels | None:
    """Those that multiply these rows by codes. None: there are so many that values are made of the codes first."""
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
    """As `run_experts`, with a second matrix that the kernel for any format multiplies by."""
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


def _in_slices(x: Tensor, matrix: ShuffledInt4, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What `product` makes of x and the values, slice by slice."""
    from facet.kernels.quantized.int4.dequantize import dequantize

    parts = [product(x, dequantize(part, x.dtype)) for part in _slices(matrix)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _slices(matrix: ShuffledInt4) -> Iterator[ShuffledInt4]:
    size = max(1, _SLICE_BYTES // (2 * matrix.num_inputs * TILE_OUT)) * TILE_OUT
    for start in range(0, matrix.num_rows, size):
        yield matrix.rows(slice(start, min(start + size, matrix.num_rows)))
