"""Routing and experts in Triton. Same meaning as `reference.py`; the host never waits for the GPU.

A pair is a row and one of its choices; pairs are numbered row by row. With few rows every pair reads its expert by
itself, as here. On Hopper GPUs few rows go through rings, which read every chosen expert once (`rings.py`). With more
rows, pairs of one expert share the reading of it, too: see triton_groups.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.linear.triton import add_products, load_weight_tile, tile_places
from facet.kernels.moe.config import MAX_PAIR_ROWS, TileConfig, choose_tiles
from facet.kernels.moe.rings import rings_of
from facet.kernels.moe.triton_groups import ExpertMatrices, combine, geglu, run_groups
from facet.kernels.rounded_rows import RoundedRows


def route(router_logits: Tensor, num_chosen: int, expert_scale: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, num_experts = router_logits.shape
    weights = torch.empty(num_rows, num_chosen, dtype=torch.float32, device=router_logits.device)
    chosen = torch.empty(num_rows, num_chosen, dtype=torch.int64, device=router_logits.device)
    if num_rows:
        _route_kernel[(num_rows,)](
            router_logits.contiguous(),
            expert_scale,
            weights,
            chosen,
            num_experts,
            NUM_CHOSEN=num_chosen,
            CHOSEN_PAD=triton.next_power_of_2(num_chosen),
            EXPERTS_PAD=triton.next_power_of_2(num_experts),
            num_warps=1,
            **launch_options(router_logits.device),
        )
    return weights, chosen


def run_experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    tiles: tuple[TileConfig, TileConfig] | None = None,
) -> Tensor:
    """`tiles`: for the two grouped products; None: chosen by the shapes, as is whether they are grouped at all.

    Rings serve where they can, whatever the tiles: their bits are those of grouped products.
    """
    assert gate_up.is_contiguous(), "experts lie one after another"
    assert down.is_contiguous(), "experts lie one after another"
    num_rows, num_chosen = chosen.shape
    x, weights, chosen = x.contiguous(), weights.contiguous(), chosen.contiguous()
    if num_rows == 0:
        return torch.empty_like(x)
    rings = rings_of(x, gate_up, down)
    if rings is not None:
        from facet.kernels.moe import expert_rings  # imports Gluon

        return combine(expert_rings.multiply_pairs(x, chosen, gate_up, down, rings), weights)
    if tiles is None and num_rows <= MAX_PAIR_ROWS:
        return _run_pairs(x, weights, chosen, gate_up, down)
    tiles = tiles or choose_tiles(num_rows * num_chosen, gate_up.shape[0], x.element_size())
    return run_groups(x, weights, chosen, ExpertMatrices(gate_up), ExpertMatrices(down), tiles)


def run_rounded_experts(
    x: RoundedRows,
    weights: Tensor,
    chosen: Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    round_hidden: Callable[[Tensor], RoundedRows],
    tiles: tuple[TileConfig, TileConfig] | None = None,
) -> Tensor:
    """Runs experts with codes of eight bits on both sides, always grouped."""
    num_rows, num_chosen = chosen.shape
    if num_rows == 0:
        return torch.empty(x.codes.shape, dtype=x.dtype, device=x.codes.device)
    tiles = tiles or choose_tiles(num_rows * num_chosen, gate_up.values.shape[0], x.codes.element_size())
    return run_groups(x, weights.contiguous(), chosen.contiguous(), gate_up, down, tiles, round_hidden)


def _run_pairs(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    num_rows, num_chosen = chosen.shape
    hidden_size, width = down.shape[1:]
    hidden = torch.empty(num_rows * num_chosen, width, dtype=x.dtype, device=x.device)
    # A warp takes 256 columns with one 16-byte load for each thread.
    _pair_hidden_kernel[(num_rows * num_chosen, triton.cdiv(width, 4))](
        x,
        chosen,
        gate_up,
        hidden,
        width,
        NUM_IN=hidden_size,
        NUM_CHOSEN=num_chosen,
        BLOCK_OUT=8,
        BLOCK_IN=512,
        num_warps=2,
        **launch_options(x.device),
    )
    output = torch.empty_like(x)
    block_in = min(1024, max(256, triton.next_power_of_2(width)))
    _pair_down_kernel[(num_rows, triton.cdiv(hidden_size, 8))](
        hidden,
        weights,
        chosen,
        down,
        output,
        hidden_size,
        NUM_IN=width,
        NUM_CHOSEN=num_chosen,
        BLOCK_OUT=8,
        BLOCK_IN=block_in,
        num_warps=block_in // 256,
        **launch_options(x.device),
    )
    return output


@triton.jit
def _route_kernel(
    logits,
    expert_scale,
    weights,
    chosen,
    num_experts,
    NUM_CHOSEN: tl.constexpr,
    CHOSEN_PAD: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS_PAD)
    is_expert = experts < num_experts
    scores = tl.load(logits + row * num_experts + experts, mask=is_expert, other=float("-inf")).to(tl.float32)
    odds = tl.exp(scores - tl.max(scores, 0))
    # Less than any probability, so that neither padding nor an expert already chosen is chosen before the others.
    left = tl.where(is_expert, odds / tl.sum(odds, 0), -1.0)
    slots = tl.arange(0, CHOSEN_PAD)
    best = tl.zeros([CHOSEN_PAD], tl.float32)
    best_experts = tl.zeros([CHOSEN_PAD], tl.int32)
    for slot in tl.static_range(NUM_CHOSEN):
        expert = tl.argmax(left, 0, tie_break_left=True)
        best = tl.where(slots == slot, tl.max(left, 0), best)
        # NaN among the logits must not lead to an expert that does not exist.
        best_experts = tl.where(slots == slot, tl.minimum(expert, num_experts - 1), best_experts)
        left = tl.where(experts == expert, -1.0, left)
    is_slot = slots < NUM_CHOSEN
    scale = tl.load(expert_scale + best_experts).to(tl.float32)
    tl.store(weights + row * NUM_CHOSEN + slots, best / tl.sum(best, 0) * scale, mask=is_slot)
    tl.store(chosen + row * NUM_CHOSEN + slots, best_experts.to(tl.int64), mask=is_slot)


@triton.jit
def _row_sums(x_row, weight_rows, NUM_IN: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr):
    """One row of x times BLOCK_OUT rows of a weight, in float32."""
    totals = tl.zeros([BLOCK_OUT, BLOCK_IN // 8], tl.float32)
    for start in range(0, NUM_IN, BLOCK_IN):
        places = start + tile_places(BLOCK_IN)
        is_live = places < NUM_IN
        tile = load_weight_tile(weight_rows, places, is_live)
        totals = add_products(totals, tile, x_row, places, is_live)
    return tl.sum(totals, 1)


@triton.jit
def _pair_hidden_kernel(
    x,
    chosen,
    gate_up,
    hidden,
    width,
    NUM_IN: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """geglu of one pair's gate and up, whose rows are neighbours in a tile so that they can be split apart again."""
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    pair = tl.program_id(0)
    expert = tl.load(chosen + pair)
    local = tl.arange(0, BLOCK_OUT)
    first_column = tl.program_id(1) * (BLOCK_OUT // 2)
    weight_row = tl.minimum(first_column + local // 2, width - 1) + local % 2 * width
    weight_rows = gate_up + (expert * (2 * width) + weight_row) * NUM_IN
    sums = _row_sums(x + pair // NUM_CHOSEN * NUM_IN, weight_rows, NUM_IN, BLOCK_OUT, BLOCK_IN)
    gate, up = tl.split(tl.reshape(sums, [BLOCK_OUT // 2, 2]))
    columns = first_column + tl.arange(0, BLOCK_OUT // 2)
    result = geglu(gate, up, hidden.dtype.element_ty)
    tl.store(hidden + pair * width + columns, result, mask=columns < width)


@triton.jit
def _pair_down_kernel(
    hidden,
    weights,
    chosen,
    down,
    output,
    hidden_size,
    NUM_IN: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Some columns of one row: the results of its choices, rounded, times their weights, in order."""
    let_next_start(IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    weight_row = tl.minimum(columns, hidden_size - 1)
    total = tl.zeros([BLOCK_OUT], tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        pair = row * NUM_CHOSEN + choice
        weight_rows = down + (tl.load(chosen + pair) * hidden_size + weight_row) * NUM_IN
        sums = _row_sums(hidden + pair * NUM_IN, weight_rows, NUM_IN, BLOCK_OUT, BLOCK_IN)
        total += sums.to(output.dtype.element_ty).to(tl.float32) * tl.load(weights + pair)
    tl.store(output + row * hidden_size + columns, total.to(output.dtype.element_ty), mask=columns < hidden_size)
