"""Pages: the figures of the published models, and that no two layers' keys ever meet, for any model."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.kv_layout import DTYPE_BYTES, KVLayout, make_kv_layout
from facet.model.families import read_model_spec
from facet.model_spec import AttentionKind, LayerSpec, ModelSpec, RotarySpec
from tests.published_configs import PUBLISHED

KIB, MIB = 2**10, 2**20


def layout_of(name: str, *, dtype: str = "bfloat16", merge_equal_values: bool = True) -> KVLayout:
    return make_kv_layout(read_model_spec(PUBLISHED[name]), dtype=dtype, merge_equal_values=merge_equal_values)


def check_layout(layout: KVLayout, spec: ModelSpec, *, merge: bool, min_tokens: int) -> None:
    """Everything a layout promises to the arena, the kernels and the accountant."""
    element = DTYPE_BYTES[layout.dtype]
    placed: list[int] = []
    for group in layout.groups:
        end = 0
        for store in group.stores:
            layer = spec.layers[store.layer]
            assert layer.owns_kv
            assert (layer.attention, layer.window) == (group.kind, group.window)
            assert (store.num_kv_heads, store.head_dim) == (layer.num_kv_heads, layer.head_dim)
            assert store.num_vectors == (1 if merge and layer.values_are_keys else 2)
            vector_bytes = store.num_kv_heads * store.head_dim * element
            assert store.byte_offset >= end, "two layers share bytes"
            assert store.byte_offset % element == 0
            assert layout.page_bytes % vector_bytes == 0, "pages must hold whole vectors of every layer"
            end = store.byte_offset + group.tokens_per_block * store.num_vectors * vector_bytes
            placed.append(store.layer)
        assert end == group.tokens_per_block * group.bytes_per_token <= layout.page_bytes
        assert layout.page_bytes - end <= layout.page_bytes / 100, "more than a hundredth is wasted"
        assert group.tokens_per_block >= min_tokens
        assert layout.groups[layout.group_of(group.kind)] is group
    assert sorted(placed) == [layer.index for layer in spec.layers if layer.owns_kv]
    assert {group.kind for group in layout.groups} == {layer.attention for layer in spec.layers}
    assert len(layout.groups) == len({group.kind for group in layout.groups})


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_model_keeps_the_promises(name: str, dtype: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    for merge in (True, False):
        layout = make_kv_layout(spec, dtype=dtype, merge_equal_values=merge)
        check_layout(layout, spec, merge=merge, min_tokens=16)


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "tokens_per_block"),
    [
        ("Gemma 4 E2B", (12_288, 6_144), (16, 32)),
        ("Gemma 4 E4B", (40_960, 16_384), (16, 40)),
        ("Gemma 4 12B", (327_680, 8_192), (16, 640)),
        ("Gemma 4 26B-A4B", (204_800, 10_240), (16, 320)),
        ("Gemma 4 31B", (819_200, 40_960), (16, 320)),
        ("Gemma 3 270M", (15_360, 3_072), (16, 80)),
        ("Gemma 3 4B", (118_784, 20_480), (16, 92)),
        ("Gemma 3 27B", (425_984, 81_920), (16, 83)),
        ("Gemma 3n E4B", (32_768, 8_192), (16, 64)),
    ],
)
def test_figures_in_bfloat16(name: str, bytes_per_token: tuple[int, int], tokens_per_block: tuple[int, int]) -> None:
    layout = layout_of(name)
    assert [group.kind for group in layout.groups] == ["sliding", "global"]
    assert tuple(group.bytes_per_token for group in layout.groups) == bytes_per_token
    assert tuple(group.tokens_per_block for group in layout.groups) == tokens_per_block


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("Gemma 4")])
def test_no_gemma_4_wastes_a_byte(name: str) -> None:
    layout = layout_of(name)
    assert all(group.bytes_per_token * group.tokens_per_block == layout.page_bytes for group in layout.groups)


@pytest.mark.parametrize(
    ("name", "window_mib", "stored_twice_kib", "stored_once_kib"),
    [
        ("Gemma 4 E2B", 6, 6, 6),
        ("Gemma 4 E4B", 20, 16, 16),
        ("Gemma 4 12B", 320, 16, 8),
        ("Gemma 4 26B-A4B", 200, 20, 10),
        ("Gemma 4 31B", 800, 80, 40),
    ],
)
def test_memory_of_a_window_and_of_a_global_token(
    name: str, window_mib: int, stored_twice_kib: int, stored_once_kib: int
) -> None:
    """The fact sheet's table; global layers of the large models store one vector for keys and values."""
    sliding, once = layout_of(name).groups
    twice = layout_of(name, merge_equal_values=False).groups[1]
    assert sliding.window is not None
    assert sliding.window * sliding.bytes_per_token == window_mib * MIB
    assert twice.bytes_per_token == stored_twice_kib * KIB
    assert once.bytes_per_token == stored_once_kib * KIB


def test_wider_numbers_cost_in_proportion() -> None:
    for narrow, wide in zip(
        layout_of("Gemma 4 E4B").groups, layout_of("Gemma 4 E4B", dtype="float32").groups, strict=True
    ):
        assert wide.bytes_per_token == 2 * narrow.bytes_per_token
        assert wide.tokens_per_block == narrow.tokens_per_block


def test_layers_that_read_anothers_keys_store_nothing() -> None:
    stored = {store.layer for group in layout_of("Gemma 4 E4B").groups for store in group.stores}
    assert stored == set(range(24))


BASE = read_model_spec(PUBLISHED["Gemma 4 31B"])


@st.composite
def arbitrary_specs(draw: st.DrawFn) -> ModelSpec:
    """Any mix of kinds, heads and sharing that a model could have, and many that none does."""
    kinds: list[AttentionKind] = draw(st.lists(st.sampled_from(("sliding", "global")), min_size=1, max_size=12))
    num_owners = draw(st.integers(1, len(kinds)))
    window = draw(st.integers(1, 4096))
    layers: list[LayerSpec] = []
    for index, kind in enumerate(kinds):
        owners = [layer.index for layer in layers[:num_owners] if layer.attention == kind]
        layers.append(
            LayerSpec(
                index=index,
                attention=kind,
                window=window if kind == "sliding" else None,
                num_heads=8,
                num_kv_heads=draw(st.integers(1, 8)),
                head_dim=2 * draw(st.integers(1, 40)),
                attention_scale=1.0,
                rotary=RotarySpec(theta=1e4),
                kv_from_layer=owners[-1] if owners and index >= num_owners else None,
                values_are_keys=kind == "global" and draw(st.booleans()),
                values_are_normed=True,
                mlp_width=1,
                mlp_sparsity=0.0,
                moe=None,
            )
        )
    return replace(BASE, layers=tuple(layers))


@given(
    spec=arbitrary_specs(),
    dtype=st.sampled_from(list(DTYPE_BYTES)),
    merge=st.booleans(),
    min_tokens=st.integers(1, 64),
)
def test_any_model_keeps_the_promises(spec: ModelSpec, dtype: str, merge: bool, min_tokens: int) -> None:
    layout = make_kv_layout(spec, dtype=dtype, merge_equal_values=merge, min_tokens_per_block=min_tokens)
    check_layout(layout, spec, merge=merge, min_tokens=min_tokens)


@given(spec=arbitrary_specs())
def test_the_page_is_the_smallest_that_serves(spec: ModelSpec) -> None:
    layout = make_kv_layout(spec, dtype="bfloat16")
    sizes = [group.bytes_per_token for group in layout.groups]
    vectors = [store.num_kv_heads * store.head_dim * 2 for group in layout.groups for store in group.stores]
    step = math.lcm(16 * max(sizes), *vectors)
    smaller = range(step, layout.page_bytes, step)
    assert layout.page_bytes % step == 0
    assert all(any(page % size > page // 100 for size in sizes) for page in smaller)
