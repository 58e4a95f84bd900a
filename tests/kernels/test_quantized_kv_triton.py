"""Quantized keys and values in the Triton kernels: written as the reference writes them, and attended to.

In Triton's interpreter on small shapes, on a GPU on real ones.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels.head_inputs import cases as head_cases
from facet.kernels.head_inputs import reference as head_reference
from facet.kernels.paged_attention import LayerCache, cases, write_keys_and_values
from facet.kernels.paged_attention.quantization import dequantize
from facet.kernels.paged_attention.reference import plan_reference
from facet.kernels.tolerance import Tolerance
from facet.kv_dtypes import KV_DTYPES
from tests.kernels.quantized import like

pytest.importorskip("triton")
from facet.kernels.head_inputs import triton as head_triton
from facet.kernels.paged_attention.decode.kernel import attend_rows
from facet.kernels.paged_attention.decode.readers import SEPARATE, SEPARATE_8BIT, SHARED_8BIT, Reader
from facet.kernels.paged_attention.decode.tuning import DecodeTuning
from facet.kernels.paged_attention.gpu import choose_reader, plan_on_gpu
from facet.kernels.paged_attention.prefill.unpack import make_scratch, unpack

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16
NAMES = [dtype.name for dtype in KV_DTYPES.values() if dtype.is_quantized]
SCALED = [name for name in NAMES if KV_DTYPES[name].has_scales]

HEADS = (
    head_cases.Case(
        name="separate",
        num_rows=5,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        num_pairs=16,
        num_projected=3,
        num_stored=2,
    ),
    head_cases.Case(
        name="shared, one key head for three",
        num_rows=3,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        num_pairs=8,
        num_projected=2,
        num_stored=1,
    ),
)
SEPARATE_VECTORS = cases.Case(
    name="separate, decode and a chunk",
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    window=50,
    tokens_per_block=12,
    sequences=((1, 1), (1, 150), (40, 70)),
)
QUARTER = cases.Case(
    name="shared, a quarter rotates, decode and a chunk",
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    window=None,
    tokens_per_block=24,
    sequences=((1, 1), (1, 100), (33, 40)),
    num_rotated_pairs=16,
)
FEW_PAIRS = replace(QUARTER, name="shared, few pairs rotate", num_rotated_pairs=8)
MANY_PAIRS = replace(QUARTER, name="shared, half of the pairs rotate", num_rotated_pairs=32)
# Every case meets every dtype of the cache. Those with scales and those without come half with each dtype of queries.
ATTENTION = [
    (case, dtype, name)
    for case in (SEPARATE_VECTORS, QUARTER, FEW_PAIRS)
    for dtype, names in ((torch.float32, NAMES[::2]), (torch.float16, NAMES[1::2]))
    for name in names
]
ATTENTION += [(MANY_PAIRS, torch.float16, name) for name in NAMES]
if ON_GPU:  # every kernel is compiled for every dtype, so the fewest that use them all
    ATTENTION = [
        (case, dtype, name)
        for case, dtype in (
            (SEPARATE_VECTORS, torch.float32),
            *((case, HALF) for case in (cases.CASES[1], cases.CASES[4], FEW_PAIRS)),
        )
        for name in NAMES
    ]


def parts(cache: LayerCache) -> list[tuple[Tensor, Tensor | None]]:
    pairs = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    return [(stored, scales) for stored, scales in pairs if stored is not None]


def written(case: head_cases.Case, name: str, dtype: torch.dtype, *, by_triton: bool, broken: bool) -> LayerCache:
    inputs = case.inputs(dtype, DEVICE)
    plain = inputs.arguments["cache"]
    assert plain is not None
    if broken:
        first = case.num_heads * case.head_dim
        inputs.projected[0, first:] = 0.0  # a vector of zeros has a scale too
        inputs.projected[1, first + 3] = float("nan")
        inputs.projected[2, first + 3 :: case.head_dim] = float("inf")
    cache = like(plain, name)
    arguments = head_cases.Arguments(**{**inputs.arguments, "cache": cache})
    prepare = head_triton.prepare_heads if by_triton else head_reference.prepare_heads
    prepare(inputs.projected, case.heads, **arguments)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [*HEADS, *(head_cases.CASES[3:] if ON_GPU else ())], ids=lambda case: case.name)
def test_written_as_the_reference_writes(case: head_cases.Case, name: str, dtype: torch.dtype) -> None:
    """The same numbers, but where the norm before was rounded the other way: then one step, of few."""
    got, expected = (written(case, name, dtype, by_triton=by_triton, broken=False) for by_triton in (True, False))
    for (stored, scales), (expected_stored, expected_scales) in zip(parts(got), parts(expected), strict=True):
        if scales is not None and expected_scales is not None:
            assert torch.equal(scales.isnan(), expected_scales.isnan()), "a scale went elsewhere"
            torch.testing.assert_close(scales, expected_scales, rtol=2**-6, atol=0, equal_nan=True)
        numbers, expected_numbers = stored.float().nan_to_num(), expected_stored.float().nan_to_num()
        differ = numbers != expected_numbers
        assert differ.float().mean() < 0.02
        largest_step = torch.maximum(numbers.abs() / 4, torch.full_like(numbers, 2.0**-9))
        if name == "int8_per_token_head":
            largest_step = torch.full_like(numbers, 1.0)
        assert ((numbers - expected_numbers).abs() <= largest_step).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy, in the interpreter, warns of what a GPU does not
# The interpreter makes a number of a NaN that becomes an e4m3.
@pytest.mark.parametrize("name", NAMES if ON_GPU else [name for name in NAMES if name != "fp8_e4m3"])
def test_what_is_no_number_stays_loud(name: str) -> None:
    case = HEADS[0]
    got, expected = (
        written(replace(case, values_are_normed=False), name, torch.float32, by_triton=by_triton, broken=True)
        for by_triton in (True, False)
    )
    for (stored, scales), (expected_stored, expected_scales) in zip(parts(got), parts(expected), strict=True):
        read, expected_read = dequantize(stored, scales, HALF), dequantize(expected_stored, expected_scales, HALF)
        assert torch.equal(read.isnan(), expected_read.isnan())
        if scales is not None and expected_scales is not None:
            assert torch.equal(scales == 1.0, expected_scales == 1.0)
            assert (scales == 1.0).any(), "the scale of zeros"


def quantized(case: cases.Case, name: str, dtype: torch.dtype) -> cases.AttentionInputs:
    inputs = case.inputs(dtype, DEVICE)
    cache = like(inputs.cache, name)
    for sequence, (query_len, context_len) in enumerate(case.sequences):
        live = torch.arange(case.first_live(query_len, context_len), context_len, device=DEVICE)
        blocks = inputs.block_table[sequence, live // case.tokens_per_block].long()
        values = inputs.values[sequence][live]
        keys = values if cache.values is None else inputs.keys[sequence][live]
        stored_values = None if cache.values is None else values
        write_keys_and_values(cache, keys, stored_values, blocks, live % case.tokens_per_block)
    return replace(inputs, cache=cache)


def tolerance(case: cases.Case, dtype: torch.dtype) -> Tolerance:
    """That of plain keys; and the reference rounds every number it reads once more, which the kernels do not.

    A score of size 5 that is a sum over hundreds of rounded products moves by less than one part in 256.
    """
    plain = case.tolerance(dtype)
    return plain if dtype == torch.float32 else replace(plain, absolute=4e-2, why="numbers read are rounded or not")


@pytest.mark.parametrize(("case", "dtype", "name"), ATTENTION, ids=lambda value: getattr(value, "name", str(value)))
def test_attended_to_as_the_reference_attends(case: cases.Case, dtype: torch.dtype, name: str) -> None:
    inputs = quantized(case, name, dtype)
    got = case.attend(inputs, plan_on_gpu)
    assert got.dtype == dtype
    tolerance(case, dtype).check(got, case.attend(inputs, plan_reference))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [SEPARATE_VECTORS, QUARTER], ids=lambda case: case.name)
def test_unpacked_numbers_are_those_of_the_reference(case: cases.Case, name: str) -> None:
    """Bit for bit: a product in float32, rounded once."""
    inputs = quantized(replace(case, sequences=((40, 70),)), name, HALF)
    (plan,) = case.plan(inputs, plan_on_gpu).prefills
    (run_pass,) = plan.passes
    scratch = make_scratch(inputs.cache, run_pass, HALF, inputs.key_recipe, is_shared=False)
    unpack(scratch, inputs.cache, plan.rows, run_pass, range(case.num_kv_heads), inputs.key_recipe)
    live = torch.arange(case.first_live(40, 70), 70, device=DEVICE)
    blocks, slots = inputs.block_table[0, live // case.tokens_per_block].long(), live % case.tokens_per_block
    for unpacked, (stored, scales) in zip(
        (scratch.values,) if inputs.cache.values is None else (scratch.keys, scratch.values),
        parts(inputs.cache),
        strict=True,
    ):
        expected = dequantize(stored, scales, HALF)[blocks, slots].transpose(0, 1)
        assert torch.equal(unpacked[:, : len(live)], expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("case", "reader"),
    [
        (SEPARATE_VECTORS, SEPARATE_8BIT),
        (SEPARATE_VECTORS, SEPARATE),
        (MANY_PAIRS, SHARED_8BIT),
        (MANY_PAIRS, SEPARATE),
    ],
    ids=["separate", "separate, as any cache is read", "shared", "shared, as any cache is read"],
)
def test_shares(case: cases.Case, name: str, reader: Reader) -> None:
    """Rows in several shares, whose last tile is not full: spare places have no scale of their own."""
    case = replace(case, window=None, sequences=((1, 33), (1, 100)))
    inputs = quantized(case, name, HALF)
    (plan,) = case.plan(inputs, plan_on_gpu).decodes
    assert reader in (SEPARATE, choose_reader(inputs.queries, inputs.cache, inputs.key_recipe))
    tuning = DecodeTuning(
        keys_per_tile=32, least_keys=32, num_splits=3, num_warps=4, num_stages=2, last_merges=True, exits_early=False
    )
    got = torch.full_like(inputs.queries, float("nan"))
    attend_rows(inputs.queries, got, inputs.cache, plan, case.scale, inputs.key_recipe, reader, tuning)
    tolerance(case, HALF).check(got, case.attend(inputs, plan_reference))


@pytest.mark.parametrize("name", SCALED)
def test_a_scale_that_is_no_number_is_heard(name: str) -> None:
    case = replace(SEPARATE_VECTORS, window=None, sequences=((1, 20), (1, 20)))
    inputs = quantized(case, name, HALF)
    assert inputs.cache.value_scales is not None
    inputs.cache.value_scales[inputs.block_table[0, 1].long(), 3] = float("nan")
    got = case.attend(inputs, plan_on_gpu)
    assert got[0].isnan().all()
    assert torch.isfinite(got[1]).all()
