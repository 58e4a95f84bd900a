"""Caches of quantized keys and values, as tests of kernels need them."""

import torch

from facet.kernels.paged_attention import LayerCache
from facet.kv_dtypes import KV_DTYPES


def like(plain: LayerCache, name: str) -> LayerCache:
    """Memory for what `plain` holds: pages and scales lie between those of other layers, everything is NaN."""
    dtype = KV_DTYPES[name]
    num_pages, size, num_heads, head_dim = plain.keys.shape
    num_vectors = 1 if plain.values is None else 2
    device = plain.keys.device
    pages = torch.full((num_pages, 2 * size + 3, num_heads, head_dim), 0xFF, dtype=torch.uint8, device=device)
    # Tokens of one head side by side, as the arena lays scales out.
    scales = torch.full((num_pages, 2, num_heads, size + 1), float("nan"), device=device)
    vectors = pages.view(getattr(torch, dtype.stored_as))
    starts = (1, size + 2)[:num_vectors]
    keys, values = [*(vectors[:, start : start + size] for start in starts), None][:2]
    key_scales, value_scales = [*(scales[:, index, :, :size].transpose(1, 2) for index in range(num_vectors)), None][:2]
    assert keys is not None
    return LayerCache(
        keys=keys,
        values=values,
        key_scales=key_scales if dtype.has_scales else None,
        value_scales=value_scales if dtype.has_scales else None,
    )
