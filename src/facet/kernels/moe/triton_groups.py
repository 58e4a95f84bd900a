"""Experts for many rows in Triton: a program computes a tile of one group of pairs (`triton_sorting.py`).

As many programs are launched as there may be groups; those without one end at once. On Hopper GPUs another kernel
serves the tallest tiles in bfloat16, with the same bits (`hopper_groups.py`).
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, start_after_previous, wait_for_previous
from facet.kernels.geglu.triton import gelu_tanh
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.moe.config import TileConfig
from facet.kernels.moe.groups import Groups
from facet.kernels.moe.triton_sorting import group_pairs
from facet.kernels.rounded_rows import RoundedRows
from facet.kernels.shared_memory import fitting_stages


class ExpertMatrices(NamedTuple):
    """[experts, outputs, inputs], in the type of the rows they multiply; codes of eight bits have scales."""

    values: Tensor
    scales: Tensor | None = None  # [experts, outputs, 1]


def run_groups(
    x: Tensor | RoundedRows,
    weights: Tensor,
    chosen: Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    tiles: tuple[TileConfig, TileConfig],
    round_hidden: Callable[[Tensor], RoundedRows] | None = None,
) -> Tensor:
    """`round_hidden`: what the second product takes, where codes are multiplied by codes."""
    num_rows, num_chosen = chosen.shape
    num_experts, hidden_size, width = down.values.shape
    assert tiles[0].block_rows == tiles[1].block_rows, "both products compute the same groups"
    groups = group_pairs(chosen, num_experts, tiles[0].block_rows)
    hidden = torch.empty(num_rows * num_chosen, width, dtype=x.dtype, device=chosen.device)
    multiply_groups(x, groups, gate_up, hidden, num_chosen, tiles[0])
    inputs = hidden if round_hidden is None else round_hidden(hidden)
    by_pair = torch.empty(num_rows * num_chosen, hidden_size, dtype=x.dtype, device=chosen.device)
    multiply_groups(inputs, groups, down, by_pair, None, tiles[1])
    return combine(by_pair, weights)


def multiply_groups(
    source: Tensor | RoundedRows,
    groups: Groups,
    matrices: ExpertMatrices,
    result: Tensor,
    num_chosen: int | None,
    config: TileConfig,
    first_expert: int = 0,
) -> None:
    """Writes what the experts from `first_expert` on, as many as there are matrices, make of their pairs.

    `num_chosen`: those of a row, for the first product: the source has rows, and `result` becomes the geglu, in order
    of experts. None: for the second, which takes that and writes results by pair.
    """
    if isinstance(source, Tensor) and runs_on_hopper(source.device):
        # Imported here: other cards need no Gluon.
        from facet.kernels.moe import hopper_groups

        if hopper_groups.can_multiply(source, matrices.values, config.block_rows, is_first=num_chosen is not None):
            hopper_groups.multiply_groups(source, groups, matrices.values, result, num_chosen, first_expert)
            return
    multiply_in_triton(source, groups, matrices, result, num_chosen, config, first_expert)


def multiply_in_triton(
    source: Tensor | RoundedRows,
    groups: Groups,
    matrices: ExpertMatrices,
    result: Tensor,
    num_chosen: int | None,
    config: TileConfig,
    first_expert: int = 0,
) -> None:
    """Like `multiply_groups`, on any GPU."""
    num_experts, num_out, num_in = matrices.values.shape
    codes, scales = (source.codes, source.scales) if isinstance(source, RoundedRows) else (source, None)
    _grouped_kernel[(triton.cdiv(num_out, config.block_out), groups.num_groups)](
        codes,
        scales,
        groups.order,
        groups.table,
        matrices.values,
        matrices.scales,
        result,
        num_out,
        first_expert,
        num_experts,
        NUM_IN=num_in,
        NUM_CHOSEN=num_chosen or 1,
        IS_FIRST=num_chosen is not None,
        BLOCK_ROWS=config.block_rows,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        MAY_HALVE=config.may_halve,
        num_warps=config.num_warps,
        num_stages=fitting_stages(config.num_stages, config.tile_bytes(codes.element_size()), result.device),
        **launch_options(result.device),
    )


def combine(by_pair: Tensor, weights: Tensor) -> Tensor:
    """The results of a row's choices times their weights, added."""
    num_rows, num_chosen = weights.shape
    hidden_size = by_pair.shape[1]
    output = torch.empty(num_rows, hidden_size, dtype=by_pair.dtype, device=by_pair.device)
    _combine_kernel[(num_rows, triton.cdiv(hidden_size, 1024))](
        by_pair, weights, output, hidden_size, NUM_CHOSEN=num_chosen, BLOCK=1024, num_warps=4,
        **launch_options(by_pair.device),
    )  # fmt: skip
    return output


@triton.jit
def geglu(gate, up, dtype: tl.constexpr):
    """gelu_tanh(gate) * up, rounded where the reference rounds."""
    opened = gelu_tanh(gate.to(dtype).to(tl.float32)).to(dtype)
    return (opened.to(tl.float32) * up.to(dtype).to(tl.float32)).to(dtype)


@triton.jit(do_not_specialize=["first_expert"])
def _grouped_kernel(
    source,  # x, by row, for the first product; the hidden activations, in order of experts, for the second
    source_scales,  # of the source's rows, where it is codes
    order,
    table,
    expert_weights,
    weight_scales,  # of the weights' rows, where they are codes
    result,  # the hidden activations, in order of experts, or the results by pair
    num_out,
    first_expert,
    num_experts,
    NUM_IN: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    MAY_HALVE: tl.constexpr,  # where a group has few pairs, or the weight few rows left
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    group = table + tl.program_id(1) * 3
    expert = tl.load(group) - first_expert
    first_place, end = tl.load(group + 1), tl.load(group + 2)
    if (end == 0) | (expert < 0) | (expert >= num_experts):
        return
    first_out = tl.program_id(0) * BLOCK_OUT
    if MAY_HALVE and end - first_place <= BLOCK_ROWS // 2:
        _multiply_tile(
            source, source_scales, order, expert_weights, weight_scales, result, expert, first_place, end, first_out,
            num_out, NUM_IN, NUM_CHOSEN, IS_FIRST, BLOCK_ROWS // 2, BLOCK_OUT, BLOCK_IN,
        )  # fmt: skip
    elif MAY_HALVE and num_out - first_out <= BLOCK_OUT // 2:
        _multiply_tile(
            source, source_scales, order, expert_weights, weight_scales, result, expert, first_place, end, first_out,
            num_out, NUM_IN, NUM_CHOSEN, IS_FIRST, BLOCK_ROWS, BLOCK_OUT // 2, BLOCK_IN,
        )  # fmt: skip
    else:
        _multiply_tile(
            source, source_scales, order, expert_weights, weight_scales, result, expert, first_place, end, first_out,
            num_out, NUM_IN, NUM_CHOSEN, IS_FIRST, BLOCK_ROWS, BLOCK_OUT, BLOCK_IN,
        )  # fmt: skip


@triton.jit
def _multiply_tile(
    source, source_scales, order, expert_weights, weight_scales, result, expert, first_place, end, first_out, num_out,
    NUM_IN: tl.constexpr, NUM_CHOSEN: tl.constexpr, IS_FIRST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """The pairs of a group from `first_place` on times the rows of their expert's weight from `first_out` on."""
    places = first_place + tl.arange(0, BLOCK_ROWS)
    is_place = places < end
    # Beyond the group's last pair a tile takes that pair again; the store drops the result.
    pairs = tl.load(order + tl.minimum(places, end - 1))
    source_row = pairs // NUM_CHOSEN if IS_FIRST else tl.minimum(places, end - 1)
    source_rows = source + source_row.to(tl.int64) * NUM_IN
    local = tl.arange(0, BLOCK_OUT)
    if IS_FIRST:
        # Gate and up rows of a column are neighbours in the tile, so that they can be split apart again.
        width = num_out // 2
        first_column = first_out // 2
        weight_row = tl.minimum(first_column + local // 2, width - 1) + local % 2 * width
    else:
        first_column = first_out
        weight_row = tl.minimum(first_column + local, num_out - 1)
    weight_rows = expert_weights + (expert.to(tl.int64) * num_out + weight_row) * NUM_IN
    is_integer: tl.constexpr = source.dtype.element_ty == tl.int8
    sums = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.int32 if is_integer else tl.float32)
    for start in range(0, NUM_IN, BLOCK_IN):
        columns = start + tl.arange(0, BLOCK_IN)
        if NUM_IN % BLOCK_IN == 0:
            rows_tile = tl.load(source_rows[:, None] + columns[None, :])
            weight_tile = tl.load(weight_rows[None, :] + columns[:, None])
        else:
            is_live = columns < NUM_IN
            rows_tile = tl.load(source_rows[:, None] + columns[None, :], mask=is_live[None, :], other=0.0)
            weight_tile = tl.load(weight_rows[None, :] + columns[:, None], mask=is_live[:, None], other=0.0)
        if is_integer:
            sums = tl.dot(rows_tile, weight_tile, sums, out_dtype=tl.int32)
        else:
            # Tensor cores add products of fp8 with few bits: a tile's sum is added to the others in float32.
            sums = tl.dot(rows_tile, weight_tile, sums, input_precision="ieee", max_num_imprecise_acc=BLOCK_IN)
    if source_scales is not None:
        row_factors = tl.load(source_scales + source_row)
        factors = tl.load(weight_scales + expert * num_out + weight_row).to(tl.float32)
        sums = sums.to(tl.float32) * row_factors[:, None] * factors[None, :]
    dtype: tl.constexpr = result.dtype.element_ty
    if IS_FIRST:
        gate, up = tl.split(tl.reshape(sums, [BLOCK_ROWS, BLOCK_OUT // 2, 2]))
        out_columns = first_column + tl.arange(0, BLOCK_OUT // 2)
        pointers = result + places.to(tl.int64)[:, None] * width + out_columns[None, :]
        tl.store(pointers, geglu(gate, up, dtype), mask=is_place[:, None] & (out_columns < width)[None, :])
    else:
        out_columns = first_column + local
        pointers = result + pairs.to(tl.int64)[:, None] * num_out + out_columns[None, :]
        tl.store(pointers, sums.to(dtype), mask=is_place[:, None] & (out_columns < num_out)[None, :])


@triton.jit
def _combine_kernel(
    by_pair, weights, output, hidden_size,
    NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sums a row's results in the order of its choices, in float32."""
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < hidden_size
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        pair = row * NUM_CHOSEN + choice
        value = tl.load(by_pair + pair * hidden_size + columns, mask=is_column, other=0.0).to(tl.float32)
        total += value * tl.load(weights + pair)
    tl.store(output + row * hidden_size + columns, total.to(output.dtype.element_ty), mask=is_column)
