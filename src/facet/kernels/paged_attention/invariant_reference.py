"""Attention whose rows are bit for bit the same whatever else is computed in the step: not only other sequences, but
also how many rows of the same sequence, since other requests decide where a prompt is split into chunks.

    positions of one sequence   |0 .. 7|8 .. 15|...      rows of a product: a row's place in it is its position's
    keys of that sequence       |0 .. 127|128 .. 255|... *tiles*, taken in turn with a running softmax

Both are cut at positions, never at a chunk's ends, and every product has the shape of so many rows and one tile: what
is missing is filled up. A row always stands at the same place of the same products, in the same order. A tile of which
it sees nothing changes nothing: its weights are zero, and what was summed is multiplied by one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.reference import Tile, keys_and_values

# More rows make a prompt quicker, fewer a step of decoding, whose rows fill one place of a product each.
NUM_PLACES = 8
# Longer tiles are fewer, but the last one is filled up however few its keys are.
KEYS_PER_TILE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRows:
    """Some rows of one sequence, at fixed places of a product of fixed shape."""

    tile: Tile  # `visible` is [NUM_PLACES, keys]
    first_place: int  # of the first row


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantReferencePlan:
    """Everything about a step that all layers of a kind have in common."""

    placed: tuple[PlacedRows, ...]

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
        for placed in self.placed:
            tile = placed.tile
            keys, values = keys_and_values(cache, tile, key_recipe, queries.dtype)
            own_queries = queries[tile.query_rows]
            places = slice(placed.first_place, placed.first_place + len(own_queries))
            filled = torch.zeros(NUM_PLACES, *queries.shape[1:], device=queries.device)
            filled[places] = own_queries
            attended = _attend_placed(filled * scale, keys[0].float(), values[0].float(), tile.visible)
            output[tile.query_rows] = attended[places].to(output.dtype)
        return output


def plan_invariant_reference(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> InvariantReferencePlan:
    """Cut the rows at positions. A query at position p sees positions p - window + 1 to p, or 0 to p."""
    placed, start = [], 0
    positions: list[int] = rows.positions.tolist()
    for num_rows in rows.host_query_lens:
        row, end = start, start + num_rows
        while row < end:
            first = positions[row]
            count = min(end - row, NUM_PLACES - first % NUM_PLACES)
            block_row = block_table[rows.seats[row]]
            query_rows = slice(row, row + count)
            last_visible = None if rows.last_visible is None else rows.last_visible[query_rows].long()
            tile = _whole_tiles(query_rows, first, last_visible, block_row, window, tokens_per_block)
            placed.append(PlacedRows(tile=tile, first_place=first % NUM_PLACES))
            row += count
        start = end
    return InvariantReferencePlan(placed=tuple(placed))


def _whole_tiles(
    query_rows: slice,
    first: int,
    last_visible: Tensor | None,
    block_row: Tensor,
    window: int | None,
    tokens_per_block: int,
) -> Tile:
    """Whole tiles of keys for rows at positions first, first + 1, ..., each of which sees up to its own or further.

    Places nobody sees repeat a live key.
    """
    num_rows = query_rows.stop - query_rows.start
    last = first + num_rows - 1 if last_visible is None else int(last_visible.max())
    first_seen = 0 if window is None else max(0, first - window + 1)
    start, stop = first_seen // KEYS_PER_TILE * KEYS_PER_TILE, (last // KEYS_PER_TILE + 1) * KEYS_PER_TILE
    places = torch.arange(start, stop, device=block_row.device)
    first_query = first // NUM_PLACES * NUM_PLACES
    queries = torch.arange(first_query, first_query + NUM_PLACES, device=block_row.device)[:, None]
    until = queries
    if last_visible is not None:
        until = queries.clone()
        until[first - first_query : first - first_query + num_rows, 0] = last_visible
    visible = places <= until
    if window is not None:
        visible &= places > queries - window
    keys = places.clamp(first_seen, last)
    return Tile(
        query_rows=query_rows,
        num_sequences=1,
        key_positions=keys[None],
        key_blocks=block_row[keys // tokens_per_block][None].long(),
        key_slots=(keys % tokens_per_block)[None],
        visible=visible,
    )


def _attend_placed(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """queries [NUM_PLACES, heads, head_dim], keys and values [keys, kv_heads, head_dim], all float32."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    # The query heads that share a key head stand beside each other as rows of one product.
    grouped = queries.view(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    hidden = ~visible.repeat_interleave(num_heads // num_kv_heads, dim=0)
    # Not minus infinity, from which a difference to itself is no number.
    highest = grouped.new_full((*grouped.shape[:2], 1), torch.finfo(torch.float32).min)
    total, sums = torch.zeros_like(highest), torch.zeros_like(grouped)
    for start in range(0, len(keys), KEYS_PER_TILE):
        tile = slice(start, start + KEYS_PER_TILE)
        # Copied, so that how a tile lies in memory does not depend on how many there are.
        some_keys, some_values = (vectors[tile].transpose(0, 1).contiguous() for vectors in (keys, values))
        scores = torch.bmm(grouped, some_keys.transpose(1, 2)).masked_fill_(hidden[:, tile], -torch.inf)
        now_highest = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - now_highest)
        shrunk = torch.exp(highest - now_highest)
        total = total * shrunk + weights.sum(dim=-1, keepdim=True)
        sums = sums * shrunk + torch.bmm(weights, some_values)
        highest = now_highest
    # Places where no row stands may have seen nothing.
    attended = sums / total.clamp(min=torch.finfo(torch.float32).tiny)
    return attended.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, num_heads, head_dim)
