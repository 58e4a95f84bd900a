"""Runs experts whose matrices are shuffled 4-bit codes."""

import torch
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.moe.config import MAX_PAIR_ROWS
from facet.kernels.moe.triton_groups import combine
from facet.kernels.moe.triton_sorting import group_pairs
from facet.kernels.quantized.experts import run_by_values
from facet.kernels.quantized.int4.dequantize import dequantize
from facet.kernels.quantized.int4.experts_kernel import experts_kernel
from facet.kernels.quantized.int4.language import gl
from facet.kernels.quantized.int4.shuffled import TILE_OUT, ShuffledInt4
from facet.kernels.quantized.int4.tuning import Tuning, choose_tuning, rows_of_program


def run_few(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: ShuffledInt4,
    down: ShuffledInt4,
    tunings: tuple[Tuning, Tuning] | None = None,
) -> Tensor:
    """By the codes as they are, for any number of rows. `tunings`: of both products; None: chosen."""
    assert x.dtype == torch.bfloat16, "pairs of bfloat16 numbers are what a word has"
    assert gate_up.num_inputs % 8 == down.num_inputs % 8 == 0, "a thread takes eight inputs at a time"
    num_rows, num_chosen = chosen.shape
    num_experts = gate_up.codes.shape[0]
    num_pairs = num_rows * num_chosen
    # With few rows every pair reads its expert by itself, which saves sorting.
    is_sorted = num_rows > MAX_PAIR_ROWS
    group_size = rows_of_program(-(-num_pairs // num_experts)) if is_sorted else 8
    if is_sorted:
        order, table, _ = group_pairs(chosen, num_experts, group_size)
    else:  # the expert of every pair stands for the table
        order = table = chosen.flatten()

    def multiply(source: Tensor, matrices: ShuffledInt4, tuning: Tuning | None, *, is_first: bool) -> Tensor:
        # How sums are cut must not depend on the number of rows: the tiles of one.
        tuning = tuning or choose_tuning(matrices.num_tiles * num_chosen, matrices.num_blocks, group_size)
        width = matrices.num_tiles * (TILE_OUT // 2 if is_first else TILE_OUT)
        result = torch.empty(num_pairs, width, dtype=x.dtype, device=x.device)
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
            **launch_options(x.device),
        )
        return result

    first, second = (None, None) if tunings is None else tunings
    hidden = multiply(x, gate_up, first, is_first=True)
    return combine(multiply(hidden, down, second, is_first=False), weights)


def run_many(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: ShuffledInt4, down: ShuffledInt4) -> Tensor:
    """By values of x's type, some experts at a time."""
    return run_by_values(x, weights, chosen, gate_up, down, dequantize)
