"""What the prefill kernels share: loading a tile of unpacked keys, and which tiles are visible to which rows.

Most tiles of keys are visible to every row of a tile of queries: only those on the edges of what is visible are masked.

    keys      |left edge: a window begins | visible to every row | right edge: last keys |

A row's last key is its own, or, in media that attend both ways, that of the last row of its span.

Scores are kept in base 2.
"""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
# What a row's greatest score starts from, and what a hidden score is before it is scaled: each far below the next,
# whatever the scale, so that a row that has seen no key yet weighs hidden ones with zero. Were they one number, a scale
# below 1 would raise hidden scores to the greatest, and the rounding of their products, 4e21 here, would be weighed.
# Both are finite, so that their difference is a number.
LEAST = tl.constexpr(-1.0e30)
HIDDEN = tl.constexpr(-1.0e38)


@triton.jit
def load_tile(source, row, column, ROW_LEN: tl.constexpr, BLOCK_N: tl.constexpr, DIMS: tl.constexpr):
    """[BLOCK_N, DIMS]; scratch is whole tiles, so nothing is masked."""
    rows, dims = tl.arange(0, BLOCK_N), tl.arange(0, DIMS)
    return tl.load(source + row.to(tl.int64) * ROW_LEN + column + rows[:, None] * ROW_LEN + dims[None, :])


@triton.jit
def visible_tiles(first_own, num_tokens, first_last, window, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """(start, full_start, full_end), multiples of BLOCK_N: where keys begin that some row sees, and between which every
    row sees all.

    The first row's own key is first_own, and the last that it sees first_last. No row behind it sees less far.
    """
    start = first_own * 0
    full_start = first_own * 0
    if HAS_WINDOW:
        start = tl.maximum(first_own - window + 1, 0) // BLOCK_N * BLOCK_N
        full_start = tl.maximum(tl.cdiv(tl.maximum(first_own + num_tokens - window, 0), BLOCK_N) * BLOCK_N, start)
    full_end = tl.maximum((first_last + 1) // BLOCK_N * BLOCK_N, full_start)
    return start, full_start, full_end


@triton.jit
def mask_scores(scores, offset, own_keys, last_keys, window, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    places = offset + tl.arange(0, BLOCK_N)
    is_visible = places[None, :] <= last_keys[:, None]
    if HAS_WINDOW:
        is_visible = is_visible & (places[None, :] > own_keys[:, None] - window)
    return tl.where(is_visible, scores, HIDDEN)
