"""The memory that keys and values live in: one run of bytes, seen by each layer through its own views."""

import torch
from torch import Tensor

from facet.kernels.paged_attention import LayerCache
from facet.kv_layout import KVGroup, KVLayout, LayerStore


class KVArena:
    """`num_pages` pages of a layout. Owns the bytes; who may use which page is decided elsewhere."""

    def __init__(self, layout: KVLayout, num_pages: int, device: torch.device | str) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self.bytes = torch.zeros(num_pages, layout.page_bytes, dtype=torch.uint8, device=device)
        self._typed = self.bytes.view(getattr(torch, layout.dtype))
        self._caches = {store.layer: self._view(group, store) for group in layout.groups for store in group.stores}

    def layer(self, index: int) -> LayerCache:
        """The keys and values that layer `index` owns."""
        return self._caches[index]

    def poison(self, pages: Tensor) -> None:
        """Fill pages with NaN, so that any later read of what was there is a loud failure."""
        self._typed[pages] = float("nan")

    def copy_pages(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole pages; no page is both a source and a destination."""
        self.bytes[destinations] = self.bytes[sources]

    def _view(self, group: KVGroup, store: LayerStore) -> LayerCache:
        heads = (store.num_kv_heads, store.head_dim)
        vector = store.num_kv_heads * store.head_dim
        page, offset = self._typed.shape[1], store.byte_offset // self._typed.element_size()

        def vectors(start: int) -> Tensor:
            shape = (self.num_pages, group.tokens_per_block, *heads)
            return self._typed.as_strided(shape, (page, vector, store.head_dim, 1), start)

        return LayerCache(
            keys=vectors(offset),
            values=vectors(offset + group.tokens_per_block * vector) if store.num_vectors == 2 else None,
        )
