"""Runs experts whose matrices are of any format, on a GPU.

Few rows of each are multiplied by values that are made on their way to the tensor cores (`few_rows.py`), many by values
that are brought to memory first, of some experts at a time. On Hopper a row has the same bits either way: values are
rounded to the type of activations, and sums are one chain.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from facet.kernels.geglu import geglu
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import round_inputs
from facet.matrix_format import MatrixFormat

# Up to so many pairs of an expert on average, values are made anew for every group of them.
MAX_FEW_PAIRS = 32
# A slice of some experts' matrices in bfloat16: enough programs for all multiprocessors, and little beside a model.
_SLICE_BYTES = 128 << 20


def serves(format: MatrixFormat) -> bool:
    """Whether experts of this format are run here: what rounds their inputs must not differ from expert to expert."""
    return not (format.is_reordered or format.rounds_outputs or format.has_input_scale)


def run(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: QuantizedMatrix, down: QuantizedMatrix, *, in_one_chain: bool
) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))). `in_one_chain`: whether sums must be one
    chain (`linear/chain.py`)."""
    if x.shape[0] == 0:
        return torch.empty_like(x)
    x, weights, chosen = x.contiguous(), weights.contiguous(), chosen.contiguous()
    from facet.kernels.moe.triton_groups import combine
    from facet.kernels.moe.triton_sorting import group_pairs
    from facet.kernels.quantized.few_rows import MAX_GROUP, is_one_chain, multiply_groups

    are_many = chosen.numel() > MAX_FEW_PAIRS * gate_up.codes.shape[0]
    if are_many or (in_one_chain and not is_one_chain(x.device)):
        return run_by_values(x, weights, chosen, gate_up, down, widen_experts, round_inputs)
    groups = group_pairs(chosen, gate_up.codes.shape[0], MAX_GROUP)
    hidden = geglu(multiply_groups(round_inputs(x, gate_up), groups, gate_up, chosen.shape[1]))
    return combine(multiply_groups(round_inputs(hidden, down), groups, down, None), weights)


def run_by_values(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Any,
    down: Any,
    values_of: Callable[[Any, torch.dtype], Tensor],
    rounded: Callable[[Tensor, Any], Tensor] = lambda rows, _matrix: rows,
) -> Tensor:
    """Runs experts by values of x's type, some experts at a time. Matrices are of any kind that has `experts(slice)`,
    of which `values_of` makes [experts, outputs, inputs]; `rounded` makes rows what products take."""
    from facet.kernels.moe.config import choose_tiles
    from facet.kernels.moe.triton_groups import ExpertMatrices, combine, multiply_groups
    from facet.kernels.moe.triton_sorting import group_pairs

    num_rows, num_chosen = chosen.shape
    num_experts = gate_up.codes.shape[0]
    # Few experts have few tall tiles, too few for all multiprocessors where each has up to 128 pairs.
    tiles = choose_tiles(num_rows * num_chosen, num_experts, x.element_size(), tall_from=129)
    groups = group_pairs(chosen, num_experts, tiles[0].block_rows)

    def multiply(source: Tensor, matrices: Any, width: int, choices: int | None) -> Tensor:
        result = torch.empty(num_rows * num_chosen, width, dtype=x.dtype, device=x.device)
        source = rounded(source, matrices)
        size = max(1, _SLICE_BYTES // (x.element_size() * matrices.num_rows * matrices.num_inputs))
        for start in range(0, num_experts, size):
            values = ExpertMatrices(values_of(matrices.experts(slice(start, start + size)), x.dtype))
            multiply_groups(source, groups, values, result, choices, tiles[choices is None], start)
        return result

    hidden = multiply(x, gate_up, down.num_inputs, num_chosen)
    return combine(multiply(hidden, down, down.num_rows, None), weights)


def widen_experts(matrices: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """[experts, outputs, inputs]."""
    from facet.kernels.quantized.widen import widen

    return widen(matrices.flat(), dtype).view(-1, matrices.num_rows, matrices.num_inputs)
