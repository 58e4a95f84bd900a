"""Says which rows are decoded through a ring of tiles, and divides their shares among programs."""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.hopper import num_multiprocessors, runs_on_hopper
from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan

# Keys of a tile, and where shares may begin: at multiples of this position.
_TILE_KEYS, _GRAIN = 64, 16
# Of a window, if it is divided evenly. Where it does not begin at a multiple of the grain, there may be one more.
_MOST_SHARES = 16
# Tiles in shared memory, and programs that a multiprocessor then holds.
_SLOTS, _PROGRAMS_PER_PROCESSOR = 3, 2
# Of a row and key head, if it has more than one: fewer are not worth putting their shares together. 8 rows of 31B take
# 39.6 us with one and 41.8 with two, 32 rows of E4B 15.6 with one, 14.9 with two and 12.9 with three.
_LEAST_PROGRAMS = 3
# Query heads of one product.
_MOST_HEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTuning:
    share_keys: int
    num_shares: int  # most of a row
    num_programs: int  # of a row and key head, on which no bit depends
    num_slots: int = _SLOTS  # tiles of keys or values in shared memory


def decodes_in_ring(queries: Tensor, cache: LayerCache, plan: DecodePlan) -> bool:
    """Whether the kernel reads such a cache, within a window, on this card. Rows of drafts have kernels that compute
    several of them together."""
    if not plan.rows.window or plan.may_share_seats or plan.is_anchored:
        return False
    group = queries.shape[1] // cache.keys.shape[2]
    return (
        runs_on_hopper(queries.device)
        and not cache.is_shared
        and not cache.is_quantized
        and queries.dtype == cache.keys.dtype
        and queries.element_size() == 2
        and queries.shape[2] in (128, 256)
        and group <= _MOST_HEADS
        and group & (group - 1) == 0
    )


def choose_ring_tuning(queries: Tensor, cache: LayerCache, plan: DecodePlan) -> RingTuning:
    """Shares follow from the window alone.

    Microseconds of a layer on an H200, bfloat16, and of the Triton kernels with fixed shares and without: E4B, contexts
    of 512, 1 row 5.5 (7.6, 6.6), 8 rows 8.0 (10.8, 10.4), 32 rows 13.3 (19.0, 17.3), 100 rows 30.8 (41.5, 40.3), which
    is 81% of what memory gives; 31B, 2K, 1 row 9.8 (12.2, 12.3), 8 rows 39.6 (45.8, 43.6), 32 rows 133 (139, 134).
    """
    share = -(-plan.rows.window // (_MOST_SHARES * _TILE_KEYS)) * _TILE_KEYS
    num_shares = -(-(plan.rows.window + _GRAIN - 1) // share)
    room = _PROGRAMS_PER_PROCESSOR * num_multiprocessors(queries.device)
    fitting = room // (plan.num_rows * cache.keys.shape[2])
    return RingTuning(
        share_keys=share,
        num_shares=num_shares,
        num_programs=min(num_shares, fitting) if fitting >= _LEAST_PROGRAMS else 1,
    )
