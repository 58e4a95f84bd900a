"""Says which rows are decoded through a ring of tiles, and divides their shares among programs."""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.hopper import num_multiprocessors, runs_on_hopper
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan

_TILE_KEYS = 64
_SHARES_OF_WINDOW = 16  # or fewer
_MOST_SHARES = 64
# Bytes that shares without a window may leave behind where they may depend on the number of rows. Where they may not,
# rows are divided among plans (`plan.PARTIALS_LIMIT`).
_USUAL_PARTIALS = 32 * 2**20
# Tiles in shared memory, and dimensions of the heads of all programs that a multiprocessor then holds.
_SLOTS, _DIMS_PER_PROCESSOR = 3, 512
# With a window, two leave room for more of what follows: 32 and 100 rows of E4B take 14.4 us and not 14.9, 32.2 and not
# 33.3, a row of 31B 9.8 and not 10.5, 8 rows 39.6 and 39.1.
_SLOTS_OF_WINDOW = 2
# Of a row and key head, if it has more than one: fewer are not worth putting their shares together. 8 rows of 31B take
# 39.6 us with one and 41.8 with two, 32 rows of E4B 15.6 with one, 14.9 with two and 12.9 with three.
_LEAST_PROGRAMS = 3
# Where contexts have no bound, so that a long one is not what all others wait for. Programs with nothing to do end at
# once. 90 x 768 and 10 x 8K of E4B: 192 us with 4, 189 with 8 and 185 with 16; 32 x 512 takes 26.5, 26.5 and 27.6.
_LEAST_PROGRAMS_WITHOUT_WINDOW = 8
# Where rows without a window have no room for two programs each: 90 x 768 and 10 x 8K of E4B take 168 us with 2 MB, 186
# with 1 and 180 with 4; 32 x 2K of 31B, whose vectors are shared, 110, 142, and 154 with half a megabyte.
_BYTES_WORTH_A_PROGRAM = 2**21
# The dimensions of shared vectors, and pairs of them that rotate.
_SHARED_DIMS, _PAIRS = 512, 64
# Query heads of one product.
_MOST_HEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTuning:
    share_keys: int  # without a window, of the smallest ones
    num_shares: int  # most of a row
    num_programs: int  # of a row and key head, on which no bit depends
    least_keys: int = 0  # of a program, if the row has as many
    num_slots: int = _SLOTS  # tiles of keys or values in shared memory


def decodes_in_ring(
    queries: Tensor, cache: LayerCache, plan: DecodePlan, key_recipe: KeyRecipe | None, *, is_invariant: bool
) -> bool:
    """Whether the kernels read such a cache on this card. Rows of drafts have kernels that compute several of them
    together. Few rows of shared vectors are faster elsewhere, if not in fixed shares: 1 x 2K of 31B 12.1 us and not
    16.0; 32 x 2K take 124 there and not 113."""
    if plan.may_share_seats or plan.has_drafts:
        return False
    if cache.is_shared:
        assert key_recipe is not None, "shared vectors need a recipe for their keys"
        if queries.shape[2] != _SHARED_DIMS or key_recipe.cos_sin.shape[-1] != _PAIRS or plan.rows.window:
            return False
        if not is_invariant and _fitting(queries, cache, plan) > 1:
            return False
    group = queries.shape[1] // cache.keys.shape[2]
    return (
        runs_on_hopper(queries.device)
        and not cache.is_quantized
        and queries.dtype == cache.keys.dtype
        and queries.element_size() == 2
        and queries.shape[2] in (128, 256, 512)
        and group <= _MOST_HEADS
        and group & (group - 1) == 0
    )


def choose_ring_tuning(queries: Tensor, cache: LayerCache, plan: DecodePlan, *, is_invariant: bool) -> RingTuning:
    """Shares follow from the window alone, or from each row's context; usually there are fewer where rows are many.

    Microseconds of a layer on an H200, bfloat16, and of the Triton kernels with fixed shares and without. Sliding
    layers of E4B, contexts of 512: 1 row 5.8 (7.5, 6.6), 8 rows 8.2 (10.8, 10.6), 32 rows 14.8 (19.0, 17.4), 100 rows
    33 (41, 41); of 31B, 2K: 1 row 10.8 (12.1, 12.4), 8 rows 40 (45, 43), 32 rows 135 (139, 135). Global layers of E4B:
    1 row of 512 7.4 (10.9, 8.2), 8 rows 10.7 (14.2, 15.2), 32 rows 27 (30, 28), 100 rows 66 (81, 68); 8 rows of 8K 80
    (95, 83). Of 31B, where vectors are shared: 1 row of 2K 16.0 (16.6, 12.1), 32 rows 113 (157, 124).
    """
    fitting = _fitting(queries, cache, plan)
    if not plan.rows.window:
        num_shares = _MOST_SHARES
        if not is_invariant:
            num_shares = max(1, min(num_shares, _USUAL_PARTIALS // (plan.num_rows * queries[0].numel() * 4)))
        return RingTuning(
            share_keys=_TILE_KEYS,
            num_shares=num_shares,
            num_programs=min(num_shares, max(fitting, _LEAST_PROGRAMS_WITHOUT_WINDOW)),
            least_keys=512 // fitting if fitting > 1 else _BYTES_WORTH_A_PROGRAM // _key_bytes(queries, cache),
        )
    share = _TILE_KEYS
    while plan.rows.window > _SHARES_OF_WINDOW * share:
        share *= 2
    num_shares = -(-plan.rows.window // share)
    return RingTuning(
        share_keys=share,
        num_shares=num_shares,
        num_programs=min(num_shares, fitting) if fitting >= _LEAST_PROGRAMS else 1,
        num_slots=_SLOTS_OF_WINDOW,
    )


def _fitting(queries: Tensor, cache: LayerCache, plan: DecodePlan) -> int:
    """Programs of each row and key head for which the multiprocessors have room at a time."""
    room = num_multiprocessors(queries.device) * (_DIMS_PER_PROCESSOR // queries.shape[2])
    return int(room // (plan.num_rows * cache.keys.shape[2]))


def _key_bytes(queries: Tensor, cache: LayerCache) -> int:
    """The bytes of a token's keys and values in one head."""
    return int(queries.shape[2]) * queries.element_size() * (1 if cache.is_shared else 2)
