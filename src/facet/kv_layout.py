"""The layout of keys and values in memory: pages of equal size, and what a page holds for each kind of layer.

The cache is one byte arena cut into pages. Layers of one kind (sliding, global) form a *group*; a *block* of a
group is one page and holds `tokens_per_block` tokens of every layer in the group that owns keys and values:

    page of a sliding block            page of a global block
    ┌────────────────────────────┐     ┌────────────────────────────┐
    │ layer 0   keys    16 tokens│     │ layer 5   keys    40 tokens│     E4B, bfloat16: 40,960 bytes per
    │           values  16 tokens│     │           values  40 tokens│     sliding token, 16,384 per global
    │ layer 1   keys    16 tokens│     │ layer 11  keys    40 tokens│     token, 640 KiB per page
    │ ...                        │     │ ...                        │
    └────────────────────────────┘     └────────────────────────────┘

A layer whose values are its keys stores one shared vector per token and head. Because all pages are alike, any group
can use any page.

Scales of quantized vectors, where a dtype has any, lie in a second run of pages with the same numbers: page n's scales
are in scale page n. Pages of vectors therefore hold as many tokens as without scales. Scale pages are of equal size
too, that of the group with the most scales; the cost of a page includes its scale page.

    scale page of a sliding block:  | layer 0, keys: head 0, 16 tokens | head 1, 16 tokens | ... | layer 0, values: ...

This module knows bytes and tokens; it knows neither tensors nor requests.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from facet.kv_dtypes import KV_DTYPES, SCALE_BYTES, KVDtype
from facet.model_spec import AttentionKind, LayerSpec, ModelSpec

# A page holds at least this many tokens of the group whose tokens are largest: small enough that a short request
# wastes little, large enough that block tables stay short and a kernel reads long runs.
MIN_TOKENS_PER_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStore:
    """Where one layer's keys and values lie inside every page of its group."""

    layer: int
    dtype: KVDtype
    byte_offset: int  # from the start of the page
    scale_offset: int | None  # in bytes from the start of the scale page; None: no scales
    num_vectors: int  # 2: keys, then values; 1: shared vectors
    num_kv_heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        return self.num_vectors * self.num_kv_heads * self.head_dim * self.dtype.num_bytes

    @property
    def scale_bytes_per_token(self) -> int:
        return self.num_vectors * self.num_kv_heads * SCALE_BYTES if self.dtype.has_scales else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """The layers that share a block table."""

    kind: AttentionKind
    window: int | None
    bytes_per_token: int  # in pages of vectors, all layers together
    tokens_per_block: int
    stores: tuple[LayerStore, ...]

    @property
    def scale_bytes_per_token(self) -> int:
        return sum(store.scale_bytes_per_token for store in self.stores)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of what its layers store, each once."""
        return tuple(dict.fromkeys(store.dtype.name for store in self.stores))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The whole cache: one page size, a group per kind of layer."""

    page_bytes: int
    groups: tuple[KVGroup, ...]
    scale_page_bytes: int = 0

    @property
    def total_page_bytes(self) -> int:
        """What a page costs: its vectors and their scales."""
        return self.page_bytes + self.scale_page_bytes

    @property
    def is_quantized(self) -> bool:
        return any(store.dtype.is_quantized for group in self.groups for store in group.stores)

    def group_of(self, kind: AttentionKind) -> int:
        return next(index for index, group in enumerate(self.groups) if group.kind == kind)


def num_stored_vectors(layer: LayerSpec) -> int:
    """One shared vector where values are keys (the key is made when it is read), else two."""
    return 1 if layer.values_are_keys else 2


def make_kv_layout(
    spec: ModelSpec,
    *,
    dtype: str | Mapping[int, str],
    min_tokens_per_block: int = MIN_TOKENS_PER_BLOCK,
) -> KVLayout:
    """Choose the page so that every group fills it exactly, or wastes less than one part in a hundred.

    `dtype` is a name of `KV_DTYPES` for all layers, or one for each layer that owns keys.
    """
    owners: dict[AttentionKind, list[LayerSpec]] = {}
    for layer in spec.layers:
        if layer.owns_kv:
            owners.setdefault(layer.attention, []).append(layer)

    def dtype_of(layer: LayerSpec) -> KVDtype:
        return KV_DTYPES[dtype if isinstance(dtype, str) else dtype[layer.index]]

    def bytes_per_token(layer: LayerSpec) -> int:
        return num_stored_vectors(layer) * layer.kv_width * dtype_of(layer).num_bytes

    group_bytes = {kind: sum(map(bytes_per_token, layers)) for kind, layers in owners.items()}
    vector_bytes = {layer.kv_width * dtype_of(layer).num_bytes for layers in owners.values() for layer in layers}
    page_bytes = choose_page_bytes(list(group_bytes.values()), vector_bytes, min_tokens_per_block)

    groups = []
    for kind, layers in owners.items():
        tokens_per_block = page_bytes // group_bytes[kind]
        stores: list[LayerStore] = []
        offset = scale_offset = 0
        # The widest numbers first: each store then begins at a multiple of the size of its numbers.
        for layer in sorted(layers, key=lambda layer: -dtype_of(layer).num_bytes):
            store = LayerStore(
                layer=layer.index,
                dtype=dtype_of(layer),
                byte_offset=offset,
                scale_offset=scale_offset if dtype_of(layer).has_scales else None,
                num_vectors=num_stored_vectors(layer),
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
            )
            stores.append(store)
            offset += tokens_per_block * store.bytes_per_token
            scale_offset += tokens_per_block * store.scale_bytes_per_token
        groups.append(
            KVGroup(
                kind=kind,
                window=layers[0].window,
                bytes_per_token=group_bytes[kind],
                tokens_per_block=tokens_per_block,
                stores=tuple(stores),
            )
        )
    return KVLayout(
        page_bytes=page_bytes,
        groups=tuple(groups),
        scale_page_bytes=max(group.tokens_per_block * group.scale_bytes_per_token for group in groups),
    )


def choose_page_bytes(group_bytes: Sequence[int], vector_bytes: Iterable[int], min_tokens_per_block: int) -> int:
    """The smallest page of which no group wastes more than one percent.

    It holds a whole number of steps of `min_tokens_per_block` of the largest tokens, and a whole number of every
    layer's vectors, so that the arena can also be read as one table of vectors. The search ends: a multiple of
    all these bytes wastes nothing.
    """
    step = min_tokens_per_block * max(group_bytes)
    step = math.lcm(step, *vector_bytes)
    page_bytes = step
    while any(page_bytes % token_bytes > page_bytes // 100 for token_bytes in group_bytes):
        page_bytes += step
    return page_bytes
