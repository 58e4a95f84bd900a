"""Attention of runs over keys and values that lie together; it knows nothing of pages.

Bound by matrix products. The rows of a product are tokens times the query heads that share a key head, so a tile of
keys serves all of them. Scores are kept in base 2. Most tiles of keys are visible to every row of a tile of queries:
only those on the edges of what is visible are masked.

    keys      |left edge: a window begins | visible to every row | diagonal: own keys |
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.prefill.plan import RunPass
from facet.kernels.paged_attention.prefill.unpack import Scratch

LOG2_E = 1.4426950408889634
# Far below any score, and finite: what a row gathers before its first visible key is scaled to nothing by that key.
HIDDEN = tl.constexpr(-1.0e30)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseShape:
    """How the work is cut and scheduled; results agree within rounding whatever is chosen here."""

    block_m: int  # rows of a product
    block_n: int  # keys of a tile
    num_warps: int
    num_stages: int
    use_tma: bool = True  # tiles come through the tensor memory accelerator, or through plain loads
    num_parts: int = 1  # programs that share a head's output dimensions, each with all the scores
    split_scores: bool = False  # of shared vectors: each half of the warps computes half of a tile's scores


def dense_shape(head_dim: int, element_size: int, *, is_shared: bool) -> DenseShape:
    """What fits in the registers and the shared memory of a Hopper multiprocessor, and was the fastest on an H200.

    With 8192 rows of bfloat16, heads of 256, sliding: 307 TFLOP/s for E4B, 437 for 31B; heads of 512, global: 311 for
    E4B, and 331 for 31B over 65536 keys. A large matrix product reaches 775.
    """
    # What did not help: one loop that masks everywhere instead of three (291 and not 307 TFLOP/s for E4B sliding, 274
    # and not 288 for 31B over 65536 keys); scores of the next tile computed ahead of the weights of this one (286 and
    # not 307 for E4B sliding, 274 and not 311 for E4B global); two small programs on a multiprocessor (423 and not 437
    # for 31B sliding, 235 and not 311 for E4B global). Nor did rescaling sums only where the greatest score has grown
    # by much, nor warps specialized by the compiler.
    if element_size == 4:
        # Products of float32 run on no tensor core and keep their operands in registers: correct, not fast.
        return DenseShape(block_m=16, block_n=16, num_warps=4, num_stages=1, use_tma=False)
    if head_dim > 256 and is_shared:
        # Over 65536 keys 99.7 ms; 104.2 with use_tma; 113.3 where both halves of the warps compute all scores.
        return DenseShape(block_m=64, block_n=64, num_warps=8, num_stages=2, use_tma=False, split_scores=True)
    if head_dim > 256:
        # Scores computed twice are cheaper than keys loaded twice: 64 rows of all dimensions took 2,009 us, this 1,770.
        return DenseShape(block_m=128, block_n=64, num_warps=8, num_stages=1, num_parts=2)
    if head_dim > 128:
        return DenseShape(block_m=128, block_n=64, num_warps=8, num_stages=2)
    return DenseShape(block_m=128, block_n=64, num_warps=8, num_stages=3)


@triton.jit
def load_tile(
    source, row, column, ROW_LEN: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr, USE_TMA: tl.constexpr
):
    """[BLOCK_N, DIMS]; scratch is whole tiles, so nothing is masked."""
    if USE_TMA:
        tile = source.load([row, column])
    else:
        rows, dims = tl.arange(0, BLOCK_N), tl.arange(0, DIMS)
        tile = tl.load(source + row.to(tl.int64) * ROW_LEN + column + rows[:, None] * ROW_LEN + dims[None, :])
    return tile


@triton.jit
def visible_tiles(first_own, num_tokens, window, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """(start, full_start, full_end, end): keys [start, end) are visible to some row, those between to every one.

    All but `end` are multiples of BLOCK_N. The first row sees the keys of its window up to its own, first_own.
    """
    end = first_own + num_tokens
    start = first_own * 0
    full_start = first_own * 0
    if HAS_WINDOW:
        start = tl.maximum(first_own - window + 1, 0) // BLOCK_N * BLOCK_N
        full_start = tl.maximum(tl.cdiv(tl.maximum(end - window, 0), BLOCK_N) * BLOCK_N, start)
    full_end = tl.maximum((first_own + 1) // BLOCK_N * BLOCK_N, full_start)
    return start, full_start, full_end, end


@triton.jit
def mask(scores, offset, own_keys, window, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    places = offset + tl.arange(0, BLOCK_N)
    is_visible = places[None, :] <= own_keys[:, None]
    if HAS_WINDOW:
        is_visible = is_visible & (places[None, :] > own_keys[:, None] - window)
    return tl.where(is_visible, scores, HIDDEN)


@triton.jit
def _attend_range(
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
        key = load_tile(keys, first_place + offset, 0, HEAD_DIM, BLOCK_N, HEAD_DIM, USE_TMA)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if MASKED:
            scores = mask(scores, offset, own_keys, window, HAS_WINDOW, BLOCK_N)
        grown = tl.maximum(greatest, tl.max(scores, axis=1) * scale)
        shrink = tl.exp2(greatest - grown)
        weight_sum = weight_sum * shrink
        total = total * shrink[:, None]
        greatest = grown
        weights = tl.exp2(scores * scale - greatest[:, None])
        weight_sum += tl.sum(weights, axis=1)
        value = load_tile(values, first_place + offset, column, HEAD_DIM, BLOCK_N, OUT_DIMS, USE_TMA)
        total = tl.dot(weights.to(value.dtype), value, total, input_precision="ieee")
    return total, greatest, weight_sum


@triton.jit(do_not_specialize=["first_head"])  # one kernel, whichever head a slice starts with
def _dense_kernel(
    queries,
    output,
    keys,
    values,
    tiles,
    scale,  # times log2(e)
    window,
    num_keys,
    num_heads,
    first_head,
    GROUP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    NUM_PIECES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_TMA: tl.constexpr,
):
    """Some consecutive rows of one run and all query heads of one key head: row m is token m // GROUP.

    The plan's tiles are cut into NUM_PIECES where they are more than BLOCK_M rows.
    """
    OUT_DIMS: tl.constexpr = HEAD_DIM // NUM_PARTS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    program, head = tl.program_id(0), tl.program_id(1)
    column = (program % NUM_PARTS) * OUT_DIMS
    piece = (program // NUM_PARTS) % NUM_PIECES
    tile = tiles + (program // (NUM_PARTS * NUM_PIECES)) * 4
    first_row = tl.load(tile) + piece * TOKENS
    num_tokens = tl.minimum(tl.load(tile + 1) - piece * TOKENS, TOKENS)
    first_place = tl.load(tile + 2) + head * num_keys
    first_own = tl.load(tile + 3) + piece * TOKENS
    if num_tokens <= 0:
        return

    members = tl.arange(0, BLOCK_M)
    tokens = members // GROUP
    is_row = tokens < num_tokens
    rows = ((first_row + tokens) * num_heads + (first_head + head) * GROUP + members % GROUP).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(queries + rows[:, None] * HEAD_DIM + dims[None, :], mask=is_row[:, None], other=0.0)
    own_keys = first_own + tokens

    start, full_start, full_end, end = visible_tiles(first_own, num_tokens, window, HAS_WINDOW, BLOCK_N)
    greatest = tl.full([BLOCK_M], HIDDEN, tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, OUT_DIMS], tl.float32)
    if HAS_WINDOW:
        total, greatest, weight_sum = _attend_range(
            query, total, greatest, weight_sum, start, full_start, keys, values, first_place, column, own_keys, scale,
            window, HAS_WINDOW, True, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
        )  # fmt: skip
    total, greatest, weight_sum = _attend_range(
        query, total, greatest, weight_sum, full_start, full_end, keys, values, first_place, column, own_keys, scale,
        window, HAS_WINDOW, False, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
    )  # fmt: skip
    total, greatest, weight_sum = _attend_range(
        query, total, greatest, weight_sum, full_end, end, keys, values, first_place, column, own_keys, scale,
        window, HAS_WINDOW, True, HEAD_DIM, OUT_DIMS, BLOCK_N, USE_TMA,
    )  # fmt: skip
    result = (total / weight_sum[:, None]).to(output.dtype.element_ty)
    out_dims = column + tl.arange(0, OUT_DIMS)
    tl.store(output + rows[:, None] * HEAD_DIM + out_dims[None, :], result, mask=is_row[:, None])


def attend_dense(
    queries: Tensor,
    output: Tensor,
    scratch: Scratch,
    plan: TritonPlan,
    run_pass: RunPass,
    heads: range,
    scale: float,
    shape: DenseShape,
) -> object:
    """Attention of the query heads that share these key heads, whose keys and values are in scratch.

    Returns the compiled kernel, for those who ask what it takes.
    """
    assert scale > 0, "the greatest score is found before scores are scaled"
    assert not shape.split_scores, "only where vectors are shared"
    assert plan.runs is not None, "a plan without runs has nothing to do here"
    num_heads, head_dim = queries.shape[1:]
    group = num_heads // plan.heads.num_kv_heads
    num_pieces = -(-plan.runs.tokens_per_tile // (shape.block_m // group))
    sources = [
        TensorDescriptor.from_tensor(vectors.view(-1, head_dim), [shape.block_n, dims]) if shape.use_tma else vectors
        for vectors, dims in ((scratch.keys, head_dim), (scratch.values, head_dim // shape.num_parts))
    ]
    return _dense_kernel[(len(run_pass.tiles) * num_pieces * shape.num_parts, len(heads))](
        queries,
        output,
        *sources,
        run_pass.tiles,
        scale * LOG2_E,
        plan.window,
        run_pass.num_keys,
        num_heads,
        heads.start,
        GROUP=group,
        HAS_WINDOW=plan.window > 0,
        HEAD_DIM=head_dim,
        NUM_PARTS=shape.num_parts,
        NUM_PIECES=num_pieces,
        BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n,
        USE_TMA=shape.use_tma,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
