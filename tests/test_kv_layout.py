"""Pages: the figures of the published models, and that no two layers' keys ever meet, for any model and dtypes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.kv_cache.accountant import longest_request, sequences_that_fit
from facet.kv_dtypes import KV_DTYPES, choose_kv_dtypes
from facet.kv_layout import KVLayout, make_kv_layout
from facet.model.families import read_model_spec
from facet.model_spec import AttentionKind, LayerSpec, ModelSpec, RotarySpec
from tests.model.paged_model import stored_separately
from tests.published_configs import PUBLISHED

KIB, MIB = 2**10, 2**20


def layout_of(name: str, *, dtype: str = "bfloat16") -> KVLayout:
    return make_kv_layout(read_model_spec(PUBLISHED[name]), dtype=dtype)


def check_layout(layout: KVLayout, spec: ModelSpec, *, min_tokens: int) -> None:
    """Everything a layout promises to the arena, the kernels and the accountant."""
    placed: list[int] = []
    for group in layout.groups:
        end = scale_end = 0
        for store in group.stores:
            layer = spec.layers[store.layer]
            assert layer.owns_kv
            assert (layer.attention, layer.window) == (group.kind, group.window)
            assert (store.num_kv_heads, store.head_dim) == (layer.num_kv_heads, layer.head_dim)
            assert store.num_vectors == (1 if layer.values_are_keys else 2)
            element = store.dtype.num_bytes
            vector_bytes = store.num_kv_heads * store.head_dim * element
            assert store.byte_offset >= end, "two layers share bytes"
            assert store.byte_offset % element == 0
            assert layout.page_bytes % vector_bytes == 0, "pages must hold whole vectors of every layer"
            end = store.byte_offset + group.tokens_per_block * store.num_vectors * vector_bytes
            placed.append(store.layer)
            if store.dtype.has_scales:
                assert store.scale_offset is not None
                assert store.scale_offset >= scale_end, "two layers share scales"
                assert store.scale_offset % 4 == 0
                scale_end = store.scale_offset + group.tokens_per_block * store.num_vectors * store.num_kv_heads * 4
        assert end == group.tokens_per_block * group.bytes_per_token <= layout.page_bytes
        assert layout.page_bytes - end <= layout.page_bytes / 100, "more than a hundredth is wasted"
        assert scale_end == group.tokens_per_block * group.scale_bytes_per_token <= layout.scale_page_bytes
        assert group.tokens_per_block >= min_tokens
        assert layout.groups[layout.group_of(group.kind)] is group
    assert sorted(placed) == [layer.index for layer in spec.layers if layer.owns_kv]
    assert {group.kind for group in layout.groups} == {layer.attention for layer in spec.layers}
    assert len(layout.groups) == len({group.kind for group in layout.groups})
    most_scales = max(group.tokens_per_block * group.scale_bytes_per_token for group in layout.groups)
    assert layout.total_page_bytes == layout.page_bytes + most_scales


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_model_keeps_the_promises(name: str, dtype: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    for each in (spec, stored_separately(spec)):
        check_layout(make_kv_layout(each, dtype=dtype), each, min_tokens=16)


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
    twice = make_kv_layout(stored_separately(read_model_spec(PUBLISHED[name])), dtype="bfloat16").groups[1]
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_scales_change_no_page_of_vectors(name: str) -> None:
    """R4: with the scale inside the page, a 256-wide layer cost 520 and a 512-wide one 1032, which fit nothing."""
    plain, scaled = layout_of(name, dtype="fp8_e4m3"), layout_of(name, dtype="fp8_per_token_head")
    assert plain.page_bytes == scaled.page_bytes
    assert [group.tokens_per_block for group in plain.groups] == [group.tokens_per_block for group in scaled.groups]
    assert plain.scale_page_bytes == 0 < scaled.scale_page_bytes


LARGE_AND_SMALL = ("Gemma 4 E4B", "Gemma 4 12B", "Gemma 4 26B-A4B", "Gemma 4 31B")
CHOICES = (*(name for name in KV_DTYPES), "global=int8_per_token_head", "global=fp8_per_token_head,sliding=fp8_e5m2")


def layout_with(name: str, choice: str, skip_layers: tuple[str, ...] = ()) -> KVLayout:
    spec = read_model_spec(PUBLISHED[name])
    model_dtype = "float32" if choice == "float32" else "bfloat16"
    return make_kv_layout(
        spec, dtype=choose_kv_dtypes(spec, asked=choice, skip_layers=skip_layers, model_dtype=model_dtype)
    )


@pytest.mark.parametrize("skip_layers", [(), ("0", "5", "7")], ids=str)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", LARGE_AND_SMALL)
def test_capacity_is_close_to_the_arithmetic_ideal(name: str, choice: str, skip_layers: tuple[str, ...]) -> None:
    """The ideal: a token takes its bytes and its scales' bytes, windows are cut to the token, no page is rounded."""
    layout = layout_with(name, choice, skip_layers)
    for group in layout.groups:
        assert group.tokens_per_block * group.bytes_per_token >= 0.99 * layout.page_bytes
    num_bytes, in_flight = 2**40, 8192
    sliding, full = (group.bytes_per_token + group.scale_bytes_per_token for group in layout.groups)
    window = layout.groups[0].window
    assert window is not None
    is_mixed = "=" in choice or skip_layers != ()
    # A window's extra block and the last global one weigh less in longer requests.
    for num_tokens in (8192 if is_mixed else 2048, 32_768, 131_072):
        ideal = (num_bytes - min(num_tokens, in_flight) * sliding) / (window * sliding + num_tokens * full)
        fit = sequences_that_fit(
            layout,
            num_bytes // layout.total_page_bytes,
            num_tokens=num_tokens,
            max_num_batched_tokens=in_flight,
        )
        assert fit.num_sequences >= 0.97 * ideal


def test_scales_cost_no_more_than_their_bytes() -> None:
    """26B-A4B, 15.18 GiB: another engine had 0.78 of plain fp8's capacity once scales were on."""
    num_bytes = int(15.18 * 2**30)

    def num_tokens(choice: str) -> int:
        layout = layout_with("Gemma 4 26B-A4B", choice)
        longest = longest_request(layout, num_bytes // layout.total_page_bytes)
        assert longest is not None
        return longest

    plain = num_tokens("fp8")
    assert num_tokens("int8_per_token_head") >= 0.98 * plain
    assert num_tokens("fp8_per_token_head") >= 0.98 * plain


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


@given(spec=arbitrary_specs(), min_tokens=st.integers(1, 64), data=st.data())
def test_any_model_keeps_the_promises(spec: ModelSpec, min_tokens: int, data: st.DataObject) -> None:
    dtypes = st.sampled_from(list(KV_DTYPES))
    each = {layer.index: data.draw(dtypes) for layer in spec.layers if layer.owns_kv}
    dtype = data.draw(dtypes | st.just(each))
    check_layout(make_kv_layout(spec, dtype=dtype, min_tokens_per_block=min_tokens), spec, min_tokens=min_tokens)


@given(spec=arbitrary_specs())
def test_the_page_is_the_smallest_that_serves(spec: ModelSpec) -> None:
    layout = make_kv_layout(spec, dtype="bfloat16")
    sizes = [group.bytes_per_token for group in layout.groups]
    vectors = [store.num_kv_heads * store.head_dim * 2 for group in layout.groups for store in group.stores]
    step = math.lcm(16 * max(sizes), *vectors)
    smaller = range(step, layout.page_bytes, step)
    assert layout.page_bytes % step == 0
    assert all(any(page % size > page // 100 for size in sizes) for page in smaller)
