"""Attention of runs over shared vectors that were unpacked: each serves as key and value, and is loaded once for both.

A key is rotate(w * v), and three quarters of its dimensions are still: there q . k = (q * w) . v. So only the quarter
that rotates is kept as a key of its own. Vectors lie in scratch with their dimensions in another order,

    values  | still, HEAD_DIM / 2 | still, HEAD_DIM / 4 | rotating, HEAD_DIM / 4 |        rotated keys  | HEAD_DIM / 4 |

and queries and results are brought into that order and back when a tile of rows begins and ends. A tile of keys moves
five eighths of what separate keys and values move into shared memory. That matters for heads of 512: their results fill
the registers at 64 rows, and so few rows ask for many keys per operation.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.tuning import PrefillTuning
from facet.kernels.paged_attention.prefill.unpack import Scratch
from facet.kernels.paged_attention.prefill.visible import LEAST, LOG2_E, load_tile, mask_scores, visible_tiles


@triton.jit
def _still_dims(HEAD_DIM: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """The places in a head of still dimensions FIRST, FIRST + 1, ...: those behind the rotating ones of either half."""
    order = FIRST + tl.arange(0, COUNT)
    dims = order + HEAD_DIM // 8 + tl.where(order < HEAD_DIM // 8 * 3, 0, HEAD_DIM // 8)
    return tl.max_contiguous(tl.multiple_of(dims, 8), 8)


@triton.jit
def _rotating_dims(HEAD_DIM: tl.constexpr):
    """The places in a head of the rotating dimensions: the first of either half."""
    order = tl.arange(0, HEAD_DIM // 4)
    dims = order + tl.where(order < HEAD_DIM // 8, 0, HEAD_DIM // 8 * 3)
    return tl.max_contiguous(tl.multiple_of(dims, 8), 8)


@triton.jit
def _attend_shared_range(
    wide_query,
    narrow_query,
    rotating_query,
    wide_total,
    narrow_total,
    rotating_total,
    greatest,
    weight_sum,
    start,
    end,
    wide_values,
    narrow_values,
    rotated_keys,
    first_place,
    own_keys,
    scale,
    num_keys,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The running softmax over keys [start, end) of the run.

    The compiler places all warps along the rows of a product whose result leads to another product. Eight warps along
    64 rows are twice as many as there is room for: each half computes all the scores. What comes out of a branch does
    not count as leading anywhere. So each of the three products of scores has sums of its own, and weights come out of
    a branch that is always taken, on a condition that the compiler cannot see through. The products with values are a
    second branch, on another condition, or the two would be made one. The next tile's loads are then issued ahead of
    the branches, and not behind them.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    QUARTER: tl.constexpr = HEAD_DIM // 4
    for offset in tl.range(start, end, BLOCK_N):
        place = first_place + offset
        wide = load_tile(wide_values, place, 0, HEAD_DIM, BLOCK_N, HALF)
        narrow = load_tile(narrow_values, place, HALF, HEAD_DIM, BLOCK_N, QUARTER)
        rotated = load_tile(rotated_keys, place, 0, QUARTER, BLOCK_N, QUARTER)
        wide_scores = tl.dot(wide_query, tl.trans(wide), input_precision="ieee")
        narrow_scores = tl.dot(narrow_query, tl.trans(narrow), input_precision="ieee")
        rotated_scores = tl.dot(rotating_query, tl.trans(rotated), input_precision="ieee")
        scores = wide_scores * scale + (narrow_scores * scale + rotated_scores * scale)
        if MASKED:
            scores = mask_scores(scores, offset, own_keys, own_keys, 0, False, BLOCK_N)
        rounded = tl.zeros_like(scores).to(wide.dtype)
        shrink = tl.zeros_like(greatest)
        if num_keys > 0:
            grown = tl.maximum(greatest, tl.max(scores, axis=1))
            shrink = tl.exp2(greatest - grown)
            weights = tl.exp2(scores - grown[:, None])
            weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
            rounded = weights.to(wide.dtype)
            greatest = grown
        if num_keys > 1:
            rotating = load_tile(narrow_values, place, HALF + QUARTER, HEAD_DIM, BLOCK_N, QUARTER)
            wide_total = tl.dot(rounded, wide, wide_total * shrink[:, None], input_precision="ieee")
            narrow_total = tl.dot(rounded, narrow, narrow_total * shrink[:, None], input_precision="ieee")
            rotating_total = tl.dot(rounded, rotating, rotating_total * shrink[:, None], input_precision="ieee")
    return wide_total, narrow_total, rotating_total, greatest, weight_sum


# One kernel for all steps, whichever head a slice starts with.
@triton.jit(do_not_specialize=["num_keys", "first_head"], do_not_specialize_on_alignment=["tiles"])
def _shared_kernel(
    queries,
    output,
    wide_values,
    narrow_values,
    rotated_keys,
    key_weight,
    tiles,
    scale,  # times log2(e)
    num_keys,
    num_heads,
    first_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PROGRAMS_PER_TILE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some consecutive rows of one run and all query heads of one key head: row m is token m // GROUP.

    Tiles of the plan that are more than BLOCK_M rows have several programs.
    """
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    program, head = tl.program_id(0), tl.program_id(1)
    number = program % PROGRAMS_PER_TILE
    tile = tiles + (program // PROGRAMS_PER_TILE) * 4
    first_row = tl.load(tile) + number * TOKENS
    num_tokens = tl.minimum(tl.load(tile + 1) - number * TOKENS, TOKENS)
    first_place = tl.load(tile + 2) + head * num_keys
    first_own = tl.load(tile + 3) + number * TOKENS
    if num_tokens <= 0:
        return

    members = tl.arange(0, BLOCK_M)
    tokens = members // GROUP
    is_row = (tokens < num_tokens)[:, None]
    rows = ((first_row + tokens) * num_heads + (first_head + head) * GROUP + members % GROUP).to(tl.int64)
    rows = rows[:, None] * HEAD_DIM
    own_keys = first_own + tokens
    wide_dims = _still_dims(HEAD_DIM, 0, HEAD_DIM // 2)[None, :]
    narrow_dims = _still_dims(HEAD_DIM, HEAD_DIM // 2, HEAD_DIM // 4)[None, :]
    rotates = _rotating_dims(HEAD_DIM)[None, :]

    # What has been computed in registers stays there as an operand of a product, and there is no room for it. So the
    # weighted queries go to where the result will be, and come back by a load, into shared memory.
    wide_query = tl.load(queries + rows + wide_dims, mask=is_row, other=0.0)
    narrow_query = tl.load(queries + rows + narrow_dims, mask=is_row, other=0.0)
    wide_weighted = (wide_query.to(tl.float32) * tl.load(key_weight + wide_dims)).to(wide_query.dtype)
    narrow_weighted = (narrow_query.to(tl.float32) * tl.load(key_weight + narrow_dims)).to(wide_query.dtype)
    tl.store(output + rows + wide_dims, wide_weighted, mask=is_row)
    tl.store(output + rows + narrow_dims, narrow_weighted, mask=is_row)
    tl.debug_barrier()
    wide_query = tl.load(output + rows + wide_dims, mask=is_row, other=0.0)
    narrow_query = tl.load(output + rows + narrow_dims, mask=is_row, other=0.0)
    rotating_query = tl.load(queries + rows + rotates, mask=is_row, other=0.0)

    start, _, full_end = visible_tiles(first_own, num_tokens, first_own, 0, False, BLOCK_N)
    end = first_own + num_tokens
    greatest = tl.full([BLOCK_M], LEAST, tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    wide_total = tl.zeros([BLOCK_M, HEAD_DIM // 2], tl.float32)
    narrow_total = tl.zeros([BLOCK_M, HEAD_DIM // 4], tl.float32)
    rotating_total = tl.zeros([BLOCK_M, HEAD_DIM // 4], tl.float32)
    wide_total, narrow_total, rotating_total, greatest, weight_sum = _attend_shared_range(
        wide_query, narrow_query, rotating_query, wide_total, narrow_total, rotating_total, greatest, weight_sum,
        start, full_end, wide_values, narrow_values, rotated_keys, first_place, own_keys, scale, num_keys,
        False, HEAD_DIM, BLOCK_N,
    )  # fmt: skip
    wide_total, narrow_total, rotating_total, greatest, weight_sum = _attend_shared_range(
        wide_query, narrow_query, rotating_query, wide_total, narrow_total, rotating_total, greatest, weight_sum,
        full_end, end, wide_values, narrow_values, rotated_keys, first_place, own_keys, scale, num_keys,
        True, HEAD_DIM, BLOCK_N,
    )  # fmt: skip
    dtype = output.dtype.element_ty
    # Rows that are none may have seen no key.
    weight_sum = tl.where(tokens < num_tokens, weight_sum, 1.0)
    tl.debug_barrier()
    tl.store(output + rows + wide_dims, (wide_total / weight_sum[:, None]).to(dtype), mask=is_row)
    tl.store(output + rows + narrow_dims, (narrow_total / weight_sum[:, None]).to(dtype), mask=is_row)
    tl.store(output + rows + rotates, (rotating_total / weight_sum[:, None]).to(dtype), mask=is_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKernel:
    """A `PrefillKernel` over shared vectors, a quarter of whose dimensions rotates; without a window."""

    tuning: PrefillTuning

    @property
    def is_shared(self) -> bool:
        return True

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
        assert key_recipe is not None, "shared vectors need a recipe for their keys"
        assert not plan.rows.sees_ahead, "a row's own key is the last that it sees"
        tuning, num_heads, head_dim = self.tuning, *queries.shape[1:]
        group = num_heads // plan.rows.heads.num_kv_heads
        programs_per_tile = -(-plan.tokens_per_tile // (tuning.block_m // group))
        return _shared_kernel[(len(run_pass.tiles) * programs_per_tile, len(heads))](
            queries,
            output,
            scratch.values,  # twice: of one pointer the compiler makes code that spills more
            scratch.values,
            scratch.keys,
            key_recipe.weight,
            run_pass.tiles,
            scale * LOG2_E,
            run_pass.num_keys,
            num_heads,
            heads.start,
            GROUP=group,
            HEAD_DIM=head_dim,
            PROGRAMS_PER_TILE=programs_per_tile,
            BLOCK_M=tuning.block_m,
            BLOCK_N=tuning.block_n,
            num_warps=tuning.num_warps,
            num_stages=tuning.num_stages,
        )
