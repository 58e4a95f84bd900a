"""Chooses how decoded rows are divided among programs: a function of shapes, with the times behind it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import Reader
from facet.kernels.paged_attention.tiles import LEAST_TILE
from facet.kernels.shared_memory import has_room

# Programs that a multiprocessor holds at a time. One program more than fit would run alone, after all others.
_PROGRAMS_PER_PROCESSOR = 2
# Most shares that the last program puts together: it reads all of them alone.
MOST_MERGED_BY_LAST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    """How decoded rows are divided among programs. Where shares are fixed (`fixed.py`), the first three also decide the
    order of sums; the rest is about speed alone."""

    keys_per_tile: int
    least_keys: int  # of a share: below it, putting shares together costs more than it saves
    num_splits: int  # most shares of a row
    num_warps: int
    num_stages: int
    last_merges: bool  # the last program of a row and key head puts its shares together; else a second kernel does
    # A program without keys ends as soon as it knows. The compiler then loads the query only after the branch: one more
    # wait before the first key.
    exits_early: bool
    is_full: bool = False  # there are more rows than the multiprocessors have room for two shares of
    one_size_merges: bool = False  # the last program has room for the most shares that it may ever put together
    num_programs: int | None = None  # of a row and key head, which take its shares in turn; None: one for each share
    program_keys: int = 0  # of those: what a program takes at least, if there are as many
    rows_of_group: int = 1  # that those compute together at most: rows of drafts

    @property
    def merged_shares(self) -> int:
        """Shares that the last program has room for, if it puts them together: two sizes, so that few kernels serve
        all batch sizes."""
        if self.num_splits == 1 or not self.last_merges:
            return 0
        return 4 if self.num_splits <= 4 and not self.one_size_merges else MOST_MERGED_BY_LAST


def choose_decode_tuning(reader: Reader, queries: Tensor, cache: LayerCache, plan: DecodePlan) -> DecodeTuning:
    """A tuning that depends on shapes alone: a captured graph keeps its choice. Times are of an H200, bfloat16, per
    layer.

    Beside a prompt, microseconds count for little, and every kernel that such steps may need is compiled at the start:
    there, what saves few of them is not done.
    """
    has_window, is_beside_prompt = plan.rows.window > 0, plan.row_map is not None
    # Half the bytes of a window are read in no time, and a share costs more than it saves: E4B sliding, 32 rows,
    # 10.3 us in 2 shares and 13.1 in 6.
    programs = 1 if reader.widens_to_half and has_window else _PROGRAMS_PER_PROCESSOR
    fitting = fitting_shares(plan, queries.device, programs)
    least_keys, num_splits = choose_shares(plan, fitting)
    keys_per_tile, num_stages = choose_tile(reader, queries, cache)
    num_warps = 4
    if not reader.widens_to_half:
        if keys_per_tile * _key_bytes(queries, cache) > 2**15:
            if fitting >= 128 and not is_beside_prompt:
                # One row has the processors to itself: 21.5 us and not 24.7 for E4B global at 8K.
                num_warps, num_stages = 8, 5
        elif fitting == 0 and not cache.is_shared:
            # More programs than fit: less memory each is better than more tiles on their way. 31B sliding, 32 rows:
            # 135 us and not 166. Where they fit it is the other way round: E4B sliding, 100 rows: 44 us and not 39.
            num_stages = 3
    return DecodeTuning(
        keys_per_tile=keys_per_tile,
        least_keys=least_keys,
        num_splits=num_splits,
        num_warps=num_warps,
        num_stages=num_stages,
        # Shared vectors leave no registers for it: 31B global, 4 x 64K, 359 us and not 330 where shares merge apart.
        # Nor do quantized ones beyond a window: E4B global, 8 x 64K, 295 and not 262.
        last_merges=num_splits <= MOST_MERGED_BY_LAST
        and not cache.is_shared
        and not (reader.widens_to_half and not has_window),
        # Many programs without keys take turns; few run beside the others.
        exits_early=fitting < 8 or is_beside_prompt,
        is_full=fitting < 2,
        one_size_merges=is_beside_prompt,
    )


def choose_tile(reader: Reader, queries: Tensor, cache: LayerCache) -> tuple[int, int]:
    """Keys of a tile, and how many tiles are on their way: of the layer alone."""
    key_bytes = _key_bytes(queries, cache)
    if reader.widens_to_half:
        if cache.is_shared and cache.keys.dtype == torch.int8:
            # More registers than there are, otherwise: 31B global, 1 x 64K, 112 us and not 136.
            return 32, 5
        # Sixteen keys for each warp. Programs that take turns hide more than tiles that wait, and leave room for each
        # other: two stages more are another tile in memory.
        return 64, 3 if cache.is_shared or 64 * key_bytes > 2**15 else 5
    keys_per_tile = max(LEAST_TILE, min(32, 2**16 // key_bytes))
    # E4B global: 32 keys in 3 stages are 267 us, 16 in 5 are 282 at 32 x 8K; 90 and 110 at 100 x 768.
    num_stages = 3 if keys_per_tile * key_bytes > 2**15 else 5
    if num_stages == 3 and not has_room(queries.device):
        return LEAST_TILE, 3
    return keys_per_tile, num_stages


def _key_bytes(queries: Tensor, cache: LayerCache) -> int:
    """The bytes of a token's keys and values in one head, as a product takes them."""
    # Products of float32 numbers are made of widened tiles, whatever was stored.
    element_size = cache.keys.element_size() if queries.element_size() == 2 else queries.element_size()
    return int(queries.shape[2]) * element_size * (1 if cache.is_shared else 2)


def fitting_shares(plan: DecodePlan, device: torch.device, programs: int) -> int:
    """Shares of each row for which the multiprocessors have room at a time."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    return programs * processors // (plan.num_rows * plan.rows.heads.num_kv_heads)


def choose_shares(plan: DecodePlan, fitting: int) -> tuple[int, int]:
    """The least keys of a share, and the most shares of a row.

    As many shares as fit; the fewer they are, the more keys each has, so that short contexts stay whole among many
    rows. With few rows time is latency, and a share of one tile is the quickest: 512 keys of E4B in 4, 8 shares took
    11.1, 8.6 us (sliding), 17.9, 12.2 us (global). Where rows see as much as they like, four shares at least keep one
    long context from being what all others wait for: 249 us and not 598 for 10 x 8K among 90 x 768 of E4B. Within a
    window nobody is long: one share of 1024 keys took 135 us, two 155, for 32 rows of 31B.
    """
    least_keys = keys_worth_a_program(fitting)
    most = max(fitting, 1 if plan.rows.window else 4)
    return least_keys, max(1, min(most, plan.most_keys // least_keys))


def keys_worth_a_program(fitting: int) -> int:
    return max(32, 512 // max(fitting, 1))
