"""Attention over rows that hold several documents each, within documents, causally and within windows.

Two implementations with the same result, and a third in `flash.py`. `dense_attend` builds the whole mask and is the
definition; it runs anywhere. `flex_attend` skips the empty blocks of the mask, which are most of them; a GPU trains
with it if the third one fails.

Shapes: queries [rows, heads, length, dim], keys and values [rows, kv heads, length, dim].
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from facet.model_spec import LayerSpec

# queries, keys, values and the layer whose turn it is -> what its heads read
Attend = Callable[[Tensor, Tensor, Tensor, LayerSpec], Tensor]

BLOCK_SIZE = 128  # of a flex mask, on both sides


def dense_attend(document_ids: Tensor) -> Attend:
    """Attention by a mask of [rows, length, length] for each window. `document_ids`: [rows, length], rising."""
    masks: dict[int | None, Tensor] = {}

    def attend(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerSpec) -> Tensor:
        if layer.window not in masks:
            masks[layer.window] = dense_mask(document_ids, layer.window)[:, None]
        group = layer.num_heads // layer.num_kv_heads
        return scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(group, dim=1),
            values.repeat_interleave(group, dim=1),
            attn_mask=masks[layer.window],
            scale=layer.attention_scale,
        )

    return attend


def flex_attend(document_ids: Tensor, attention: Callable[..., Tensor] = flex_attention) -> Attend:
    """The same through flex attention. `attention` may be a compiled one; the length must be a multiple of a block."""
    masks: dict[int | None, BlockMask] = {}

    def attend(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerSpec) -> Tensor:
        if layer.window not in masks:
            masks[layer.window] = block_mask(document_ids, layer.window)
        return attention(
            queries,
            keys,
            values,
            block_mask=masks[layer.window],
            scale=layer.attention_scale,
            enable_gqa=layer.num_heads != layer.num_kv_heads,
        )

    return attend


def dense_mask(document_ids: Tensor, window: int | None) -> Tensor:
    """[rows, queries, keys]: which query sees which key."""
    length = document_ids.shape[1]
    index = torch.arange(length, device=document_ids.device)
    distance = index[:, None] - index[None, :]
    is_near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return (document_ids[:, :, None] == document_ids[:, None, :]) & is_near


def block_mask(document_ids: Tensor, window: int | None) -> BlockMask:
    """Which blocks of the mask are not empty, from the first and last document of each block.

    Document ids rise along a row, so two blocks have a document in common exactly if their ranges overlap, and a
    block lies within one document exactly if its first and last id are equal. Nothing of size length x length is made.
    """
    num_rows, length = document_ids.shape
    assert length % BLOCK_SIZE == 0, f"rows of {length} tokens are not made of blocks of {BLOCK_SIZE}"
    blocks = document_ids.view(num_rows, -1, BLOCK_SIZE)
    first, last = blocks[:, :, 0], blocks[:, :, -1]
    index = torch.arange(length // BLOCK_SIZE, device=document_ids.device)
    distance = index[:, None] - index[None, :]  # in blocks, query less key
    is_near = distance >= 0
    is_full = distance > 0
    if window is not None:
        # The nearest pair of tokens is (distance - 1) * BLOCK_SIZE + 1 apart, the farthest (distance + 1) * it - 1.
        is_near &= (distance - 1) * BLOCK_SIZE + 1 < window
        is_full &= (distance + 1) * BLOCK_SIZE - 1 < window
    is_shared = first[:, :, None] <= last[:, None, :]  # the key block does not end before the query block begins
    is_one_document = (last[:, :, None] == first[:, None, :]) & is_shared
    full = is_full & is_one_document
    partial = is_near & is_shared & ~full

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_document = document_ids[row, query] == document_ids[row, key]
        in_past = query >= key
        if window is None:
            return in_document & in_past
        return in_document & in_past & (query - key < window)

    num_partial, partial_indices = _ordered(partial)
    num_full, full_indices = _ordered(full)
    return BlockMask.from_kv_blocks(
        num_partial, partial_indices, num_full, full_indices, BLOCK_SIZE=BLOCK_SIZE, mask_mod=sees
    )


def _ordered(is_set: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks are set, and the indices of all with the set ones in front: [rows, 1, blocks(, blocks)]."""
    counts = is_set.sum(dim=-1, dtype=torch.int32)
    indices = is_set.to(torch.int32).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None].contiguous(), indices[:, None].contiguous()
