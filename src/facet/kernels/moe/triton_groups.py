"""Experts for many rows in Triton: pairs are sorted by expert, and a program computes a tile of one expert's pairs.

A pair is a row and one of its choices; pairs are numbered row by row. There are as many programs as the worst division
of pairs among experts needs, since the host does not wait to learn the actual one; those without a tile end at once.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.linear.triton import gelu
from facet.kernels.moe.config import TileConfig
from facet.kernels.rounded_rows import RoundedRows

# Pairs that one program counts or places.
CHUNK = 128


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
    num_pairs = num_rows * num_chosen
    order, totals = sort_pairs(chosen, num_experts)

    def product(source: Tensor | RoundedRows, matrices: ExpertMatrices, result: Tensor, config: TileConfig) -> None:
        num_out, num_in = matrices.values.shape[1:]
        num_tiles = num_pairs // config.block_rows + min(num_experts, num_pairs)
        _grouped_kernel[(triton.cdiv(num_out, config.block_out), num_tiles)](
            source.codes if isinstance(source, RoundedRows) else source,
            source.scales if isinstance(source, RoundedRows) else None,
            order,
            totals,
            matrices.values,
            matrices.scales,
            result,
            num_out,
            num_experts,
            NUM_IN=num_in,
            NUM_CHOSEN=num_chosen,
            IS_FIRST=matrices is gate_up,
            EXPERTS_PAD=triton.next_power_of_2(num_experts),
            BLOCK_ROWS=config.block_rows,
            BLOCK_OUT=config.block_out,
            BLOCK_IN=config.block_in,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )

    hidden = torch.empty(num_pairs, width, dtype=x.dtype, device=chosen.device)
    product(x, gate_up, hidden, tiles[0])
    by_pair = torch.empty(num_pairs, hidden_size, dtype=x.dtype, device=chosen.device)
    product(hidden if round_hidden is None else round_hidden(hidden), down, by_pair, tiles[1])
    output = torch.empty(num_rows, hidden_size, dtype=x.dtype, device=chosen.device)
    _combine_kernel[(num_rows, triton.cdiv(hidden_size, 1024))](
        by_pair, weights, output, hidden_size, NUM_CHOSEN=num_chosen, BLOCK=1024, num_warps=4
    )
    return output


def sort_pairs(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Pairs in order of their experts, within an expert by number; and how many pairs each expert has."""
    num_pairs = chosen.numel()
    num_chunks = triton.cdiv(num_pairs, CHUNK)
    counts = torch.empty(num_chunks, num_experts, dtype=torch.int32, device=chosen.device)
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    sizes = dict(EXPERTS_PAD=triton.next_power_of_2(num_experts), CHUNK=CHUNK, num_warps=4)
    _count_kernel[(num_chunks,)](chosen, counts, num_pairs, num_experts, **sizes)
    ends = counts.cumsum(0, dtype=torch.int32)
    _place_kernel[(num_chunks,)](chosen, counts, ends, order, num_pairs, num_experts, **sizes)
    return order, ends[-1]


@triton.jit
def geglu(gate, up, dtype: tl.constexpr):
    """Rounded where the reference rounds."""
    opened = gelu(gate.to(dtype).to(tl.float32)).to(dtype)
    return (opened.to(tl.float32) * up.to(dtype).to(tl.float32)).to(dtype)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(chosen, counts, num_pairs, num_experts, EXPERTS_PAD: tl.constexpr, CHUNK: tl.constexpr):
    """How many pairs of a chunk each expert has."""
    chunk = tl.program_id(0)
    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    experts = tl.arange(0, EXPERTS_PAD)
    pair_experts = tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
    is_same = pair_experts[:, None] == experts[None, :]
    tl.store(counts + chunk * num_experts + experts, tl.sum(is_same.to(tl.int32), 0), mask=experts < num_experts)


@triton.jit(do_not_specialize=["num_pairs"])
def _place_kernel(chosen, counts, ends, order, num_pairs, num_experts, EXPERTS_PAD: tl.constexpr, CHUNK: tl.constexpr):
    """Writes a chunk's pairs to their places: after those of earlier experts, earlier chunks, and earlier pairs."""
    chunk = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_PAD)
    is_expert = experts < num_experts
    totals = tl.load(ends + (tl.num_programs(0) - 1) * num_experts + experts, mask=is_expert, other=0)
    end = tl.load(ends + chunk * num_experts + experts, mask=is_expert, other=0)
    count = tl.load(counts + chunk * num_experts + experts, mask=is_expert, other=0)
    first_place = tl.cumsum(totals, 0) - totals + end - count
    local = tl.arange(0, CHUNK)
    pairs = chunk * CHUNK + local
    is_pair = pairs < num_pairs
    row_experts = tl.load(chosen + pairs, mask=is_pair, other=-1).to(tl.int32)
    is_own = row_experts[:, None] == experts[None, :]
    place = tl.sum(tl.where(is_own, first_place[None, :], 0), 1)
    # The same experts once more, along the other axis.
    column_experts = tl.load(chosen + chunk * CHUNK + local, mask=is_pair, other=-1).to(tl.int32)
    is_before = (row_experts[:, None] == column_experts[None, :]) & (local[None, :] < local[:, None])
    place += tl.sum(is_before.to(tl.int32), 1)
    tl.store(order + place, pairs, mask=is_pair)


@triton.jit
def _grouped_kernel(
    source,  # x, by row, for the first product; the hidden activations, in order of experts, for the second
    source_scales,  # of the source's rows, where it is codes
    order,
    totals,
    expert_weights,
    weight_scales,  # of the weights' rows, where they are codes
    result,  # the hidden activations, in order of experts, or the results by pair
    num_out,
    num_experts,
    NUM_IN: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    tile = tl.program_id(1)
    experts = tl.arange(0, EXPERTS_PAD)
    num_pairs = tl.load(totals + experts, mask=experts < num_experts, other=0)
    num_tiles = (num_pairs + BLOCK_ROWS - 1) // BLOCK_ROWS
    expert = tl.sum((tl.cumsum(num_tiles, 0) <= tile).to(tl.int32), 0)
    if expert >= num_experts:
        return
    first_place = tl.sum(tl.where(experts < expert, num_pairs, 0), 0)
    first_tile = tl.sum(tl.where(experts < expert, num_tiles, 0), 0)
    end = first_place + tl.sum(tl.where(experts == expert, num_pairs, 0), 0)
    places = first_place + (tile - first_tile) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_place = places < end
    # Beyond the expert's last pair a tile takes that pair again; the store drops the result.
    pairs = tl.load(order + tl.minimum(places, end - 1))
    source_row = pairs // NUM_CHOSEN if IS_FIRST else tl.minimum(places, end - 1)
    source_rows = source + source_row.to(tl.int64) * NUM_IN
    local = tl.arange(0, BLOCK_OUT)
    if IS_FIRST:
        # Gate and up rows of a column are neighbours in the tile, so that they can be split apart again.
        width = num_out // 2
        first_column = tl.program_id(0) * (BLOCK_OUT // 2)
        weight_row = tl.minimum(first_column + local // 2, width - 1) + local % 2 * width
    else:
        first_column = tl.program_id(0) * BLOCK_OUT
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
def _combine_kernel(by_pair, weights, output, hidden_size, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    """Sums a row's results in the order of its choices, in float32."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < hidden_size
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        pair = row * NUM_CHOSEN + choice
        value = tl.load(by_pair + pair * hidden_size + columns, mask=is_column, other=0.0).to(tl.float32)
        total += value * tl.load(weights + pair)
    tl.store(output + row * hidden_size + columns, total.to(output.dtype.element_ty), mask=is_column)
