"""The definition of attention over paged keys and values; also what a CPU uses.

A plan cuts the rows into *tiles* that one batched product can serve: a long run of rows of one sequence is cut into
several, so that a sliding layer gathers a window and not a context; rows of sequences that have one each, as in
decoding, are taken together when their contexts are of similar length.

A tile names every key it gathers by position. Where sequences of a tile differ in length, the spare places repeat a
key of the same sequence and are masked: nothing outside a sequence's own, live memory is ever read, so not even a
NaN left in a dead slot can reach a result.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.quantization import cast, dequantize, quantize
from facet.kernels.rotary import apply_rotary

# Rows of one sequence per tile. Larger tiles gather a window less often, smaller ones mask less of what they gather.
ROWS_PER_GATHER = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Some query rows and the keys they may see. Either one sequence or one row per sequence."""

    query_rows: Tensor | slice
    num_sequences: int
    key_positions: Tensor  # [sequences, keys]
    key_blocks: Tensor  # [sequences, keys]
    key_slots: Tensor  # [sequences, keys]
    visible: Tensor  # [sequences, 1, queries, keys] bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan:
    """Everything about a step that all layers of a kind have in common."""

    tiles: tuple[Tile, ...]

    def run(
        self,
        queries: Tensor,
        cache: LayerCache,
        *,
        scale: float,
        key_recipe: KeyRecipe | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionPlan`."""
        output = torch.empty_like(queries) if out is None else out
        for tile in self.tiles:
            keys, values = keys_and_values(cache, tile, key_recipe, queries.dtype)
            output[tile.query_rows] = _attend(queries[tile.query_rows], keys, values, tile, scale)
        return output


def plan_reference(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> ReferencePlan:
    """Cut the rows into tiles. A query at position p sees positions p - window + 1 to p, or 0 to p; where `rows` say
    so, it sees further ahead, but no further back."""
    tiles, one_each, start = [], defaultdict(list), 0
    for num_rows, context_len in zip(rows.host_query_lens, rows.host_context_lens, strict=True):
        if num_rows == 1:
            num_keys = min(context_len, window or context_len)
            one_each[num_keys.bit_length()].append((start, context_len))
        else:
            for first in range(0, num_rows, ROWS_PER_GATHER):
                last = min(first + ROWS_PER_GATHER, num_rows)
                query_rows = slice(start + first, start + last)
                tiles.append(
                    _tile_of_one_sequence(
                        query_rows,
                        context_len - num_rows + last,
                        None if rows.last_visible is None else rows.last_visible[query_rows].long(),
                        block_table[rows.seats[start]],
                        window,
                        tokens_per_block,
                    )
                )
        start += num_rows
    for bucket in one_each.values():
        tiles.append(_tile_of_one_row_each(bucket, rows, block_table, window, tokens_per_block))
    return ReferencePlan(tiles=tuple(tiles))


def _tile_of_one_sequence(
    query_rows: slice,
    end: int,
    last_visible: Tensor | None,
    block_row: Tensor,
    window: int | None,
    tokens_per_block: int,
) -> Tile:
    """Rows at positions end - len(rows) .. end - 1 of one sequence. Without `last_visible` each sees up to its own."""
    device, start = block_row.device, end - (query_rows.stop - query_rows.start)
    queries = torch.arange(start, end, device=device)[:, None]
    until = queries if last_visible is None else last_visible[:, None]
    first = 0 if window is None else max(0, start - window + 1)
    keys = torch.arange(first, end if last_visible is None else int(last_visible.max()) + 1, device=device)
    visible = keys <= until
    if window is not None:
        visible &= keys > queries - window
    return Tile(
        query_rows=query_rows,
        num_sequences=1,
        key_positions=keys[None],
        key_blocks=block_row[keys // tokens_per_block][None].long(),
        key_slots=(keys % tokens_per_block)[None],
        visible=visible[None, None],
    )


def _tile_of_one_row_each(
    bucket: list[tuple[int, int]],
    rows: AttentionRows,
    block_table: Tensor,
    window: int | None,
    tokens_per_block: int,
) -> Tile:
    """The last position of several sequences; row and longest possible context of each."""
    device = block_table.device
    query_rows = _rows_of(bucket, device)
    context_lens = rows.positions[query_rows].long() + 1
    firsts = torch.zeros_like(context_lens) if window is None else (context_lens - window).clamp(min=0)
    longest = max(min(length, window or length) for _, length in bucket)
    positions = firsts[:, None] + torch.arange(longest, device=device)
    visible = positions < context_lens[:, None]
    positions = torch.where(visible, positions, context_lens[:, None] - 1)
    return Tile(
        query_rows=query_rows,
        num_sequences=len(bucket),
        key_positions=positions,
        key_blocks=block_table[rows.seats[query_rows][:, None], positions // tokens_per_block].long(),
        key_slots=positions % tokens_per_block,
        visible=visible[:, None, None],
    )


def _rows_of(bucket: list[tuple[int, int]], device: torch.device) -> Tensor | slice:
    """A slice where they follow each other, as in a step that only decodes: nothing is copied then."""
    first, last = bucket[0][0], bucket[-1][0]
    if last - first == len(bucket) - 1:
        return slice(first, last + 1)
    return torch.tensor([row for row, _ in bucket], device=device)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, tile: Tile, scale: float) -> Tensor:
    num_heads, head_dim = queries.shape[1:]
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [sequences, kv_heads, keys, head_dim]
    if tile.visible.shape[2] == 1:
        # One row per sequence: the query heads that share a key head take the place of query rows.
        grouped = queries.view(tile.num_sequences, keys.shape[1], -1, head_dim)
        attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=tile.visible, scale=scale)
        return attended.reshape(-1, num_heads, head_dim)
    attended = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys, values, attn_mask=tile.visible, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def keys_and_values(
    cache: LayerCache, tile: Tile, key_recipe: KeyRecipe | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The keys and values of a tile, [sequences, keys, kv_heads, head_dim] each."""
    index = torch.add(tile.key_slots, tile.key_blocks, alpha=_rows_per_page(cache.keys))
    keys = _gather(cache.keys, cache.key_scales, tile, index, dtype)
    if cache.values is not None:
        return keys, _gather(cache.values, cache.value_scales, tile, index, dtype)
    assert key_recipe is not None, "shared vectors need a recipe for their keys"
    return _make_keys(keys, tile.key_positions, key_recipe), keys


def _make_keys(values: Tensor, positions: Tensor, recipe: KeyRecipe) -> Tensor:
    """Keys of stored values [sequences, keys, kv_heads, head_dim] at positions [sequences, keys]."""
    return apply_rotary((values * recipe.weight).to(values.dtype), recipe.cos_sin[positions])


def row_places(rows: AttentionRows, block_table: Tensor, *, tokens_per_block: int) -> tuple[Tensor, Tensor]:
    """The block that each row's keys and values go to, and the slot inside it: [rows] int64 each."""
    positions = rows.positions.long()
    blocks = block_table[rows.seats, positions // tokens_per_block]
    return blocks.long(), positions % tokens_per_block


def write_keys_and_values(
    cache: LayerCache, keys: Tensor, values: Tensor | None, blocks: Tensor, slots: Tensor
) -> None:
    """Store rows [rows, kv_heads, head_dim] at their slots. Where vectors are shared, the values are given as keys."""
    index = torch.add(slots, blocks, alpha=_rows_per_page(cache.keys))
    for stored, scales, new in ((cache.keys, cache.key_scales, keys), (cache.values, cache.value_scales, values)):
        if stored is not None and new is not None:
            if scales is None:
                numbers = cast(new, stored.dtype)
            else:
                numbers, scales[blocks, slots] = quantize(new, stored.dtype)
            _token_rows(stored).index_copy_(0, index, _plain(numbers.flatten(1)))


def _gather(stored: Tensor, scales: Tensor | None, tile: Tile, index: Tensor, dtype: torch.dtype) -> Tensor:
    """[sequences, keys, kv_heads, head_dim] of `dtype`, copied out of the rows that `index` names."""
    gathered = _token_rows(stored).index_select(0, index.view(-1)).view(stored.dtype)
    vectors = gathered.view(*index.shape, *stored.shape[2:])
    return dequantize(vectors, None if scales is None else scales[tile.key_blocks, tile.key_slots], dtype)


def _plain(stored: Tensor) -> Tensor:
    """Numbers of one byte as bytes: there is no indexing of 8-bit floats."""
    return stored.view(torch.uint8) if stored.dtype.itemsize == 1 else stored


def _rows_per_page(stored: Tensor) -> int:
    """How many token-sized rows lie between the starts of two pages; the layout makes this whole."""
    return stored.stride(0) // stored.stride(1)


def _token_rows(stored: Tensor) -> Tensor:
    """The pages as one table of token-sized rows, most of which belong to other layers.

    Selecting whole rows of such a table is several times faster on a CPU than indexing pages and slots.
    """
    num_pages, tokens_per_block = stored.shape[:2]
    num_rows = (num_pages - 1) * _rows_per_page(stored) + tokens_per_block
    return _plain(stored).as_strided((num_rows, stored.stride(1)), (stored.stride(1), 1))
