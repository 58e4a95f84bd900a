"""Quantized keys and values: how far a number may move, that scales land where they belong, and that dead memory stays
dead. Attention over them is attention over what they read back as."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.head_inputs import cases as head_cases
from facet.kernels.head_inputs import prepare_heads
from facet.kernels.paged_attention import LayerCache, cases, plan_attention, write_keys_and_values
from facet.kernels.paged_attention.quantization import cast, dequantize, quantize
from facet.kv_dtypes import KV_DTYPES
from facet.kv_layout import make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.families import read_model_spec
from tests.published_configs import PUBLISHED

QUANTIZED = [dtype for dtype in KV_DTYPES.values() if dtype.is_quantized]
SCALED = [dtype.name for dtype in QUANTIZED if dtype.has_scales]
NAMES = [dtype.name for dtype in QUANTIZED]


def round_trip(name: str, vectors: Tensor) -> Tensor:
    stored_as = getattr(torch, KV_DTYPES[name].stored_as)
    stored, scales = quantize(vectors, stored_as) if KV_DTYPES[name].has_scales else (cast(vectors, stored_as), None)
    assert stored.dtype == stored_as
    return dequantize(stored, scales, vectors.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("name", NAMES)
def test_how_far_a_number_may_move(name: str, size: float, dtype: torch.dtype) -> None:
    x = (size * torch.randn(300, 2, 64, generator=torch.Generator().manual_seed(0))).to(dtype)
    largest = x.float().abs().amax(dim=-1, keepdim=True)
    bound = {
        # Half a step of 127, anywhere.
        "int8_per_token_head": largest / 254,
        # Half of the last of three or two bits; below the smallest exponent, half a step.
        "fp8_per_token_head": torch.maximum(x.float().abs() / 16, largest / 448 * 2**-10),
        "fp8_e4m3": torch.maximum(x.float().abs() / 16, torch.tensor(2.0**-10)),
        "fp8_e5m2": torch.maximum(x.float().abs() / 8, torch.tensor(2.0**-17)),
    }[name]
    rounding_of_the_result = x.float().abs() * torch.finfo(dtype).eps
    error = (round_trip(name, x).float() - x.float()).abs()
    assert (error <= 1.001 * bound + rounding_of_the_result).all()


@pytest.mark.parametrize("name", NAMES)
def test_special_vectors(name: str) -> None:
    zero = torch.zeros(3, 2, 8)
    assert torch.equal(round_trip(name, zero), zero)
    tiny = torch.full((1, 2, 8), 1e-44)
    assert round_trip(name, tiny).abs().max() <= 1e-44
    broken = torch.ones(2, 1, 8)
    broken[1, 0, 3] = float("nan")
    assert torch.isfinite(round_trip(name, broken)[0]).all()
    assert round_trip(name, broken)[1].isnan().any(), "NaN must not become a number"
    one = torch.zeros(1, 1, 8)
    one[..., 2] = -5.0
    assert torch.equal(round_trip(name, one), one)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "float16"])
def test_what_is_out_of_range_is_cut(name: str) -> None:
    limit = torch.finfo(getattr(torch, KV_DTYPES[name].stored_as)).max
    x = torch.tensor([[[1e6, -1e6, limit, -limit]]])
    assert round_trip(name, x).tolist() == [[[limit, -limit, limit, -limit]]]


@pytest.mark.parametrize("name", SCALED)
def test_every_head_has_its_own_scale(name: str) -> None:
    x = torch.ones(1, 3, 4) * torch.tensor([1.0, 1e-4, 1e5])[None, :, None]
    torch.testing.assert_close(round_trip(name, x), x, rtol=1e-6, atol=0)


def quantized_cache(case: cases.Case, name: str) -> LayerCache:
    """Memory as `cases` lays it out, in another type: other layers' places all around, everything NaN."""
    plain = case.inputs(torch.float32).cache
    stored_as = getattr(torch, KV_DTYPES[name].stored_as)
    num_pages, size = plain.keys.shape[:2]
    pages = torch.full((num_pages, 2 * size + 3, case.num_kv_heads * case.head_dim), 0xFF, dtype=torch.uint8)
    vectors = pages.view(stored_as).unflatten(2, (case.num_kv_heads, case.head_dim))
    scales = torch.full((num_pages, 2 * size + 3, case.num_kv_heads), float("nan"))
    first, second = slice(1, 1 + size), slice(size + 2, 2 * size + 2)
    has_scales, has_values = KV_DTYPES[name].has_scales, plain.values is not None
    return LayerCache(
        keys=vectors[:, first],
        values=vectors[:, second] if has_values else None,
        key_scales=scales[:, first] if has_scales else None,
        value_scales=scales[:, second] if has_scales and has_values else None,
    )


def write_live(case: cases.Case, inputs: cases.AttentionInputs, cache: LayerCache) -> None:
    """What `case.inputs` wrote, through the kernel."""
    for sequence, (query_len, context_len) in enumerate(case.sequences):
        live = torch.arange(case.first_live(query_len, context_len), context_len)
        blocks = inputs.block_table[sequence, live // case.tokens_per_block].long()
        slots = live % case.tokens_per_block
        values = inputs.values[sequence][live]
        keys = values if cache.values is None else inputs.keys[sequence][live]
        write_keys_and_values(cache, keys, None if cache.values is None else values, blocks, slots)


# Bits are compared, so few heads and rows will do: many processors multiply bfloat16 numbers one by one.
SLIDING = replace(cases.CASES[0], num_heads=4)
SHARED = replace(cases.CASES[4], num_heads=4, num_kv_heads=2, sequences=((1, 1), (1, 641), (5, 333)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [SLIDING, SHARED], ids=lambda case: case.name)
def test_attention_is_attention_over_what_reads_back(case: cases.Case, name: str, dtype: torch.dtype) -> None:
    """Bit for bit: quantized memory, and plain memory that holds the same numbers. All else is NaN."""
    inputs = case.inputs(dtype)
    cache = quantized_cache(case, name)
    write_live(case, inputs, cache)
    values = cache.keys if cache.values is None else cache.values
    scales = cache.key_scales if cache.values is None else cache.value_scales
    read_back = LayerCache(
        keys=inputs.cache.keys.copy_(dequantize(cache.keys, cache.key_scales, dtype)),
        values=None if inputs.cache.values is None else inputs.cache.values.copy_(dequantize(values, scales, dtype)),
    )
    got, expected = (case.attend(replace(inputs, cache=each), plan_attention) for each in (cache, read_back))
    assert got.dtype == dtype
    assert torch.isfinite(got).all()
    assert torch.equal(got, expected)


@given(name=st.sampled_from(NAMES), num_rows=st.integers(0, 8), seed=st.integers(0, 100))
def test_writing_touches_its_slots_and_nothing_else(name: str, num_rows: int, seed: int) -> None:
    case = cases.Case(
        name="small", num_heads=2, num_kv_heads=2, head_dim=4, window=None, tokens_per_block=3, sequences=((1, 7),)
    )
    cache = quantized_cache(case, name)
    generator = torch.Generator().manual_seed(seed)
    num_places = cache.keys.shape[0] * case.tokens_per_block
    places = torch.randperm(num_places, generator=generator)[:num_rows]
    keys, values = torch.randn(2, len(places), 2, 4, generator=generator)
    write_keys_and_values(cache, keys, values, places // 3, places % 3)
    for stored, scales, new in ((cache.keys, cache.key_scales, keys), (cache.values, cache.value_scales, values)):
        assert stored is not None
        read_back = dequantize(stored, scales, torch.float32).flatten(0, 1)
        assert torch.equal(read_back[places], round_trip(name, new))
        untouched = torch.ones(num_places, dtype=torch.bool)
        untouched[places] = False
        assert read_back[untouched].isnan().all()
    whole = torch.empty(0, dtype=torch.uint8).set_(cache.keys.untyped_storage())
    assert (whole.view(-1, 2 * 3 + 3, 8)[:, (0, 4, 8)] == 0xFF).all(), "other layers' places"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", head_cases.CASES[3:], ids=lambda case: case.name)
def test_the_step_before_attention_stores_the_same(case: head_cases.Case, name: str) -> None:
    inputs = case.inputs(torch.bfloat16)
    plain = inputs.arguments["cache"]
    assert plain is not None
    queries = prepare_heads(inputs.projected, case.heads, **inputs.arguments)

    def empty_like(vectors: Tensor | None) -> Tensor | None:
        if vectors is None:
            return None
        return torch.full(vectors.shape, 0xFF, dtype=torch.uint8).view(getattr(torch, KV_DTYPES[name].stored_as))

    def scales_of(vectors: Tensor | None) -> Tensor | None:
        if vectors is None or not KV_DTYPES[name].has_scales:
            return None
        return torch.full(vectors.shape[:-1], float("nan"))

    keys = empty_like(plain.keys)
    assert keys is not None
    cache = LayerCache(
        keys=keys,
        values=empty_like(plain.values),
        key_scales=scales_of(plain.keys),
        value_scales=scales_of(plain.values),
    )
    arguments = head_cases.Arguments(**{**inputs.arguments, "cache": cache})  # type: ignore[typeddict-item]
    assert torch.equal(prepare_heads(inputs.projected, case.heads, **arguments), queries)
    blocks, slots = arguments["write_blocks"], arguments["write_slots"]
    for stored, scales, exact in (
        (cache.keys, cache.key_scales, plain.keys),
        (cache.values, cache.value_scales, plain.values),
    ):
        if stored is not None and exact is not None:
            got = dequantize(stored, scales, torch.bfloat16)[blocks, slots]
            assert torch.equal(got, round_trip(name, exact[blocks, slots]))


def arena_of(dtype: str, num_pages: int = 4) -> KVArena:
    spec = read_model_spec(PUBLISHED["Gemma 4 26B-A4B"])
    return KVArena(make_kv_layout(spec, dtype=dtype, min_tokens_per_block=1), num_pages, "cpu")


def each_cache(check: Callable[[LayerCache, int], None], arena: KVArena) -> None:
    for group in arena.layout.groups:
        for store in group.stores:
            check(arena.layer(store.layer), group.tokens_per_block)


@pytest.mark.parametrize("name", KV_DTYPES)
def test_an_arena_gives_each_layer_memory_of_its_own(name: str) -> None:
    """Every layer writes all its slots of two pages; what others wrote is still there."""
    arena = arena_of(name)
    generator = torch.Generator().manual_seed(0)
    arena.poison(torch.arange(4))
    written: list[tuple[LayerCache, Tensor, Tensor, Tensor]] = []

    def write(cache: LayerCache, tokens_per_block: int) -> None:
        # One page per kind, as in a running engine: sliding layers page 1, global ones page 2.
        page = 1 if cache.values is not None else 2
        blocks, slots = torch.full((tokens_per_block,), page), torch.arange(tokens_per_block)
        rows = torch.randn(2, tokens_per_block, *cache.keys.shape[2:], generator=generator)
        write_keys_and_values(cache, rows[0], None if cache.values is None else rows[1], blocks, slots)
        written.append((cache, rows, blocks, slots))

    each_cache(write, arena)
    for cache, rows, blocks, slots in written:
        for stored, scales, new in (
            (cache.keys, cache.key_scales, rows[0]),
            (cache.values, cache.value_scales, rows[1]),
        ):
            if stored is not None:
                read_back = dequantize(stored, scales, torch.float32)
                assert torch.equal(read_back[blocks, slots], round_trip(name, new))
                assert read_back[0].isnan().all()
    arena.copy_pages(torch.tensor([1, 2]), torch.tensor([3, 0]))
    arena.poison(torch.tensor([1, 2]))
    for cache, rows, blocks, slots in written:
        copies = torch.where(blocks == 1, 3, 0)
        read_back = dequantize(cache.keys, cache.key_scales, torch.float32)
        assert torch.equal(read_back[copies, slots], round_trip(name, rows[0]))
        assert read_back[blocks, slots].isnan().all()
