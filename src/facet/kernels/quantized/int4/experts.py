"""Runs experts whose matrices are shuffled 4-bit codes, or the first of the two."""

import torch
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.moe.config import MAX_PAIR_ROWS
from facet.kernels.moe.triton_groups import combine
from facet.kernels.moe.triton_sorting import group_pairs
from facet.kernels.quantized import few_rows as any_format
from facet.kernels.quantized.experts import MAX_FEW_PAIRS, run_by_values, widen_experts
from facet.kernels.quantized.int4.dequantize import dequantize
from facet.kernels.quantized.int4.experts_kernel import experts_kernel
from facet.kernels.quantized.int4.shuffled import ShuffledInt4
from facet.kernels.quantized.int4.tuning import Tuning, choose_tuning, rows_of_program
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import round_inputs
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled_product import TILE_OUT


def run_few(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: ShuffledInt4,
    down: ShuffledInt4,
    tunings: tuple[Tuning, Tuning] | None = None,
) -> Tensor:
    """Runs experts by the codes as they are, for any number of rows. `tunings`: of both products; None: chosen here."""
    num_experts = gate_up.codes.shape[0]
    # With few rows every pair reads its expert by itself, which saves sorting.
    is_sorted = chosen.shape[0] > MAX_PAIR_ROWS
    group_size = rows_of_program(-(-chosen.numel() // num_experts)) if is_sorted else 8
    if is_sorted:
        order, table, _ = group_pairs(chosen, num_experts, group_size)
    else:  # the expert of every pair stands for the table
        order = table = chosen.flatten()
    groups = (order, table, group_size, is_sorted)
    first, second = (None, None) if tunings is None else tunings
    hidden = _multiply(x, chosen, gate_up, groups, first, is_first=True)
    return combine(_multiply(hidden, chosen, down, groups, second, is_first=False), weights)


def _multiply(
    source: Tensor,
    chosen: Tensor,
    matrices: ShuffledInt4,
    groups: tuple[Tensor, Tensor, int, bool],
    tuning: Tuning | None,
    *,
    is_first: bool,
) -> Tensor:
    """One of the two products. `groups`: order, table, pairs of a group, and whether they are sorted."""
    assert source.dtype == torch.bfloat16, "pairs of bfloat16 numbers are what a word has"
    assert matrices.num_inputs % 8 == 0, "a thread takes eight inputs at a time"
    order, table, group_size, is_sorted = groups
    num_chosen = chosen.shape[1]
    # How sums are cut must not depend on the number of rows: the tiles of one.
    num_tiles, num_blocks = matrices.num_tiles * num_chosen, matrices.num_blocks
    tuning = tuning or choose_tuning(num_tiles, num_blocks, group_size, has_minimums=matrices.has_minimums)
    width = matrices.num_tiles * (TILE_OUT // 2 if is_first else TILE_OUT)
    result = torch.empty(chosen.numel(), width, dtype=source.dtype, device=source.device)
    experts_kernel[(-(-matrices.num_tiles // (tuning.tiles * tuning.num_out_warps)), table.shape[0])](
        source.view(torch.int32),
        *matrices.words(),
        matrices.factors,
        order,
        table,
        result,
        matrices.num_inputs // 2,
        matrices.num_tiles,
        matrices.num_blocks,
        matrices.num_inputs,
        NUM_CHOSEN=num_chosen,
        IS_FIRST=is_first,
        IS_SORTED=is_sorted,
        SCALE_DTYPE=getattr(gl, matrices.scale_type),
        HAS_ZEROS=matrices.zeros is not None,
        GROUPS=matrices.scales.shape[-2],
        **tuning.constants(matrices, group_size),
        **launch_options(source.device),
    )
    return result


def run_many(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: ShuffledInt4, down: ShuffledInt4) -> Tensor:
    """Runs experts by values of x's type, some experts at a time."""
    return run_by_values(x, weights, chosen, gate_up, down, dequantize)


def run_mixed(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: ShuffledInt4, down: QuantizedMatrix, *, in_one_chain: bool
) -> Tensor:
    """Runs experts whose second matrix is of another format. `in_one_chain`: whether its sums must be one chain; the
    same bits, then, for any number of rows."""
    num_experts = gate_up.codes.shape[0]
    are_many = chosen.numel() > MAX_FEW_PAIRS * num_experts and not in_one_chain
    if are_many or (in_one_chain and not any_format.is_one_chain(x.device)):
        return run_by_values(x, weights, chosen, gate_up, down, _values_of, _rounded)
    group_size = min(any_format.MAX_GROUP, rows_of_program(-(-chosen.numel() // num_experts)))
    groups = group_pairs(chosen, num_experts, group_size)
    hidden = _multiply(x, chosen, gate_up, (groups.order, groups.table, group_size, True), None, is_first=True)
    return combine(any_format.multiply_groups(round_inputs(hidden, down), groups, down, None), weights)


def _values_of(matrices: ShuffledInt4 | QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    if isinstance(matrices, ShuffledInt4):
        return dequantize(matrices, dtype)
    return widen_experts(matrices, dtype)


def _rounded(rows: Tensor, matrices: ShuffledInt4 | QuantizedMatrix) -> Tensor:
    return rows if isinstance(matrices, ShuffledInt4) else round_inputs(rows, matrices)
