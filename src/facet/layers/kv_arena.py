"""The memory of keys and values: one tensor of bytes, which each layer sees through its own views.

Scales of quantized vectors are a second tensor, with the same page numbers.
"""

import torch
from torch import Tensor

from facet.kernels.paged_attention import LayerCache
from facet.kv_dtypes import SCALE_BYTES
from facet.kv_layout import KVGroup, KVLayout, LayerStore
from facet.layers.removable_memory import RemovableMemory, removable_memory

# Every float type reads NaN where all bits are set. An int8 reads -1 there, but its scale is NaN.
_POISON = 0xFF


class KVArena:
    """`num_pages` pages of a layout. Owns the bytes; who may use which page is decided elsewhere."""

    def __init__(
        self, layout: KVLayout, num_pages: int, device: torch.device | str, *, is_removable: bool = False
    ) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self._memory: RemovableMemory | None = None
        shape, scales_shape = (num_pages, layout.page_bytes), (num_pages, layout.scale_page_bytes // SCALE_BYTES)
        if is_removable:
            num_bytes = num_pages * layout.page_bytes
            self._memory = removable_memory(num_bytes + num_pages * layout.scale_page_bytes, torch.device(device))
            self._memory.bytes.zero_()
            self.bytes = self._memory.bytes[:num_bytes].view(shape)
            self.scales = self._memory.bytes[num_bytes:].view(torch.float32).view(scales_shape)
        else:
            self.bytes = torch.zeros(shape, dtype=torch.uint8, device=device)
            self.scales = torch.zeros(scales_shape, device=device)
        self._caches = {store.layer: self._view(group, store) for group in layout.groups for store in group.stores}

    def layer(self, index: int) -> LayerCache:
        """The keys and values that layer `index` owns."""
        return self._caches[index]

    def remove(self) -> None:
        """Gives the memory back, and all that was in it."""
        assert self._memory is not None, "it was not made to be removed"
        self._memory.remove()

    def bring_back(self) -> None:
        assert self._memory is not None, "it was not made to be removed"
        self._memory.bring_back()
        self._memory.bytes.zero_()

    def poison(self, pages: Tensor) -> None:
        """Fill pages with NaN, so that any later read of what was there is a loud failure."""
        self.bytes[pages] = _POISON
        self.scales[pages] = float("nan")

    def copy_pages(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole pages; no page is both a source and a destination."""
        self.bytes[destinations] = self.bytes[sources]
        self.scales[destinations] = self.scales[sources]

    def _view(self, group: KVGroup, store: LayerStore) -> LayerCache:
        typed = self.bytes.view(getattr(torch, store.dtype.stored_as))
        vector = store.num_kv_heads * store.head_dim
        offset = store.byte_offset // store.dtype.num_bytes

        def vectors(index: int) -> Tensor | None:
            if index >= store.num_vectors:
                return None
            shape = (self.num_pages, group.tokens_per_block, store.num_kv_heads, store.head_dim)
            strides = (typed.shape[1], vector, store.head_dim, 1)
            return typed.as_strided(shape, strides, offset + index * group.tokens_per_block * vector)

        def scales(index: int) -> Tensor | None:
            if index >= store.num_vectors or store.scale_offset is None:
                return None
            # Tokens of one head lie side by side: a kernel reads a run of them for the head it works on.
            shape = (self.num_pages, group.tokens_per_block, store.num_kv_heads)
            strides = (self.scales.shape[1], 1, group.tokens_per_block)
            start = store.scale_offset // SCALE_BYTES + index * group.tokens_per_block * store.num_kv_heads
            return self.scales.as_strided(shape, strides, start)

        keys = vectors(0)
        assert keys is not None, "a layer that owns keys stores a vector at least"
        return LayerCache(keys=keys, values=vectors(1), key_scales=scales(0), value_scales=scales(1))
