"""Attention of runs over separate keys and values that were unpacked; it knows nothing of pages.

Bound by matrix products. The rows of a product are tokens times the query heads that share a key head, so a tile of
keys serves all of them.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from facet.kernels.paged_attention.cache import KeyRecipe
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.tuning import PrefillTuning
from facet.kernels.paged_attention.prefill.unpack import Scratch
from facet.kernels.paged_attention.prefill.visible import LEAST, LOG2_E, load_tile, mask_scores, visible_tiles


@triton.jit
def _load_columns(
    source, row, column, ROW_LEN: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr, USE_TMA: tl.constexpr
):
    return source.load([row, column]) if USE_TMA else load_tile(source, row, column, ROW_LEN, BLOCK_N, DIMS)


@triton.jit
def _attend_separate_range(
    query,
    total,
    greatest,
    weight_sum,
    start,
    end,
    keys,
    values,
    first_place,
    column,
    own_keys,
    last_keys,
    scale,
    window,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    OUT_DIMS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_TMA: tl.constexpr,
):
    """The running softmax over keys [start, end) of the run."""
    for offset in tl.range(start, end, BLOCK_N):
        key = _load_columns(keys, first_place + offset, 0, HEAD_DIM, BLOCK_N, HEAD_DIM, USE_TMA)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if MASKED:
            scores = mask_scores(scores, offset, own_keys, last_keys, window, HAS_WINDOW, BLOCK_N)
        grown = tl.maximum(greatest, tl.max(scores, axis=1) * scale)
        shrink = tl.exp2(greatest - grown)
        weight_sum = weight_sum * shrink
        total = total * shrink[:, None]
        greatest = grown
        weights = tl.exp2(scores * scale - greatest[:, None])
        weight_sum += tl.sum(weights, axis=1)
        value = _load_columns(values, first_place + offset, column, HEAD_DIM, BLOCK_N, OUT_DIMS, USE_TMA)
        total = tl.dot(weights.to(value.dtype), value, total, input_precision="ieee")
    return total, greatest, weight_sum


# One kernel for all steps, whichever head a slice starts with.
@triton.jit(
    do_not_specialize=["num_keys", "first_head"], do_not_specialize_on_alignment=["tiles", "positions", "last_visible"]
)
def _separate_kernel(
    queries,
    output,
    keys,
    values,
    tiles,
    positions,
    last_visible,
    scale,  # times log2(e)
    window,
    num_keys,
    num_heads,
    first_head,
    GROUP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SEES_AHEAD: tl.constexpr,  # else positions and last_visible are not read
    HEAD_DIM: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PROGRAMS_PER_TILE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_TMA: tl.constexpr,
):
    """Some consecutive rows of one run and all query heads of one key head: row m is token m // GROUP.

    Tiles of the plan that are more than BLOCK_M rows have several programs.
    """
    OUT_DIMS: tl.constexpr = HEAD_DIM // NUM_PARTS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    program, head = tl.program_id(0), tl.program_id(1)
    column = (program % NUM_PARTS) * OUT_DIMS
    number = (program // NUM_PARTS) % PROGRAMS_PER_TILE
    tile = tiles + (program // (NUM_PARTS * PROGRAMS_PER_TILE)) * 4
    first_row = tl.load(tile) + number * TOKENS
    num_tokens = tl.minimum(tl.load(tile + 1) - number * TOKENS, TOKENS)
    first_place = tl.load(tile + 2) + head * num_keys
    first_own = tl.load(tile + 3) + number * TOKENS
    if num_tokens <= 0:
        return

    members = tl.arange(0, BLOCK_M)
    tokens = members // GROUP
    is_row = tokens < num_tokens
    rows = ((first_row + tokens) * num_heads + (first_head + head) * GROUP + members % GROUP).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(queries + rows[:, None] * HEAD_DIM + dims[None, :], mask=is_row[:, None], other=0.0)
    own_keys = first_own + tokens
    last_keys = own_keys
    first_last = first_own
    end = first_own + num_tokens
    if SEES_AHEAD:
        first_position = tl.load(positions + first_row) - first_own  # of the keys in scratch
        last_keys = tl.load(last_visible + first_row + tokens, mask=is_row, other=0) - first_position
        first_last = tl.load(last_visible + first_row) - first_position
        end = tl.load(last_visible + first_row + num_tokens - 1) - first_position + 1

    start, full_start, full_end = visible_tiles(first_own, num_tokens, first_last, window, HAS_WINDOW, BLOCK_N)
    greatest = tl.full([BLOCK_M], LEAST, tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, OUT_DIMS], tl.float32)
    if HAS_WINDOW:
        total, greatest, weight_sum = _attend_separate_range(
            query, total, greatest, weight_sum, start, full_start, keys, values, first_place, column, own_keys,
            last_keys, scale, window, HAS_WINDOW, True, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
        )  # fmt: skip
    total, greatest, weight_sum = _attend_separate_range(
        query, total, greatest, weight_sum, full_start, full_end, keys, values, first_place, column, own_keys,
        last_keys, scale, window, HAS_WINDOW, False, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
    )  # fmt: skip
    total, greatest, weight_sum = _attend_separate_range(
        query, total, greatest, weight_sum, full_end, end, keys, values, first_place, column, own_keys,
        last_keys, scale, window, HAS_WINDOW, True, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
    )  # fmt: skip
    # Rows that are none may have seen no key.
    weight_sum = tl.where(is_row, weight_sum, 1.0)
    result = (total / weight_sum[:, None]).to(output.dtype.element_ty)
    out_dims = column + tl.arange(0, OUT_DIMS)
    tl.store(output + rows[:, None] * HEAD_DIM + out_dims[None, :], result, mask=is_row[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateKernel:
    """A `PrefillKernel` over separate keys and values."""

    tuning: PrefillTuning

    @property
    def is_shared(self) -> bool:
        return False

    def attend(
        self,
        queries: Tensor,
        output: Tensor,
        scratch: Scratch,
        plan: PrefillPlan,
        run_pass: RunPass,
        heads: range,
        scale: float,
        key_recipe: KeyRecipe | None,
    ) -> object:
        assert scale > 0, "the greatest score is found before scores are scaled"
        tuning, num_heads, head_dim = self.tuning, *queries.shape[1:]
        group = num_heads // plan.rows.heads.num_kv_heads
        programs_per_tile = -(-plan.tokens_per_tile // (tuning.block_m // group))
        sources = [
            TensorDescriptor.from_tensor(vectors.view(-1, head_dim), [tuning.block_n, dims])
            if tuning.use_tma
            else vectors
            for vectors, dims in ((scratch.keys, head_dim), (scratch.values, head_dim // tuning.num_parts))
        ]
        return _separate_kernel[(len(run_pass.tiles) * programs_per_tile * tuning.num_parts, len(heads))](
            queries,
            output,
            *sources,
            run_pass.tiles,
            plan.rows.positions,
            plan.rows.last_visible,
            scale * LOG2_E,
            plan.rows.window,
            run_pass.num_keys,
            num_heads,
            heads.start,
            GROUP=group,
            HAS_WINDOW=plan.rows.window > 0,
            SEES_AHEAD=plan.rows.sees_ahead,
            HEAD_DIM=head_dim,
            NUM_PARTS=tuning.num_parts,
            PROGRAMS_PER_TILE=programs_per_tile,
            BLOCK_M=tuning.block_m,
            BLOCK_N=tuning.block_n,
            USE_TMA=tuning.use_tma,
            num_warps=tuning.num_warps,
            num_stages=tuning.num_stages,
        )
