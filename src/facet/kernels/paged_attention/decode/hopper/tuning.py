"""Says which rows are decoded through a ring of tiles, and divides their shares among programs."""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.hopper import num_multiprocessors, runs_on_hopper
from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan

# Keys of a tile, and where the shares of a window may begin: at multiples of this position.
_TILE_KEYS, _GRAIN = 64, 16
# Of a window, if it is divided evenly. Where it does not begin at a multiple of the grain, there may be one more.
_SHARES_OF_WINDOW = 16
_MOST_SHARES = 64
# Tiles in shared memory, and dimensions of the heads of all programs that a multiprocessor then holds.
_SLOTS, _DIMS_PER_PROCESSOR = 3, 512
# Of a row and key head, if it has more than one: fewer are not worth putting their shares together. 8 rows of 31B take
# 39.6 us with one and 41.8 with two, 32 rows of E4B 15.6 with one, 14.9 with two and 12.9 with three.
_LEAST_PROGRAMS = 3
# Where contexts have no bound, so that a long one is not what all others wait for. Programs with nothing to do end at
# once. 90 x 768 and 10 x 8K of E4B: 192 us with 4, 189 with 8 and 185 with 16; 32 x 512 takes 26.5, 26.5 and 27.6.
_LEAST_PROGRAMS_WITHOUT_WINDOW = 8
# Query heads of one product.
_MOST_HEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTuning:
    share_keys: int  # without a window, of the smallest ones
    num_shares: int  # most of a row
    num_programs: int  # of a row and key head, on which no bit depends
    least_keys: int = 0  # of a program, if the row has as many
    num_slots: int = _SLOTS  # tiles of keys or values in shared memory


def decodes_in_ring(queries: Tensor, cache: LayerCache, plan: DecodePlan) -> bool:
    """Whether the kernel reads such a cache on this card. Rows of drafts have kernels that compute several of them
    together."""
    if plan.may_share_seats or plan.has_drafts:
        return False
    group = queries.shape[1] // cache.keys.shape[2]
    return (
        runs_on_hopper(queries.device)
        and not cache.is_shared
        and not cache.is_quantized
        and queries.dtype == cache.keys.dtype
        and queries.element_size() == 2
        and queries.shape[2] in (128, 256, 512)
        and group <= _MOST_HEADS
        and group & (group - 1) == 0
    )


def choose_ring_tuning(queries: Tensor, cache: LayerCache, plan: DecodePlan) -> RingTuning:
    """Shares follow from the window alone, or from each row's context.

    Microseconds of a layer on an H200, bfloat16, and of the Triton kernels with fixed shares and without. Sliding
    layers of E4B, contexts of 512: 1 row 5.5 (7.6, 6.6), 8 rows 8.0 (10.8, 10.4), 32 rows 13.3 (19.0, 17.3), 100 rows
    30.8 (41.5, 40.3), which is 81% of what memory gives; of 31B, 2K: 1 row 9.8 (12.2, 12.3), 8 rows 39.6 (45.8, 43.6),
    32 rows 133 (139, 134). Global layers of E4B: 1 row of 512 7.4 (10.9, 8.1), 8 rows 10.8 (14.4, 15.2), 32 rows 26.0
    (29.5, 27.3), 100 rows 63 (80, 68); 8 rows of 8K 77 (94, 81).
    """
    room = num_multiprocessors(queries.device) * (_DIMS_PER_PROCESSOR // queries.shape[2])
    fitting = room // (plan.num_rows * cache.keys.shape[2])
    if not plan.rows.window:
        return RingTuning(
            share_keys=_TILE_KEYS,
            num_shares=_MOST_SHARES,
            num_programs=min(_MOST_SHARES, max(fitting, _LEAST_PROGRAMS_WITHOUT_WINDOW)),
            least_keys=512 // max(fitting, 1),
        )
    share = _TILE_KEYS
    while plan.rows.window > _SHARES_OF_WINDOW * share:
        share *= 2
    num_shares = -(-(plan.rows.window + _GRAIN - 1) // share)
    return RingTuning(
        share_keys=share,
        num_shares=num_shares,
        num_programs=min(num_shares, fitting) if fitting >= _LEAST_PROGRAMS else 1,
    )
