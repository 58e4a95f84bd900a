"""Attention over integers, where every product of queries with keys and of weights with values is accounted for.

In Triton's interpreter on small shapes. On a GPU at the shapes of real models, over and over: a kernel that reads an
operand too early, or writes over one too soon, is right most of the time. Kernels for Hopper are among them there, as
they are chosen; where there is no GPU, `test_hopper_prefill.py` has them emulated.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from facet.kernels.paged_attention import AttentionPlan, cases
from facet.kernels.paged_attention.invariant_reference import plan_invariant_reference
from facet.kernels.paged_attention.reference import plan_reference
from tests.kernels.exact_attention import exact_batch, plant

pytest.importorskip("triton")
from facet.kernels.paged_attention.decode.kernel import attend_rows
from facet.kernels.paged_attention.decode.tuning import choose_decode_tuning
from facet.kernels.paged_attention.gpu import choose_reader, choose_triton_kernel, plan_invariant_on_gpu, plan_on_gpu
from facet.kernels.paged_attention.prefill.runs import attend_runs

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16
NUM_REPEATS = 100 if ON_GPU else 1

# Contexts on both sides of the edges of tiles, blocks and windows. The last sequence of each is a run.
SLIDING = cases.Case(
    name="separate, sliding",
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    window=20,
    tokens_per_block=5,
    sequences=((1, 1), (1, 19), (1, 20), (1, 21), (1, 64), (1, 65), (35, 70)),
)
GLOBAL = cases.Case(
    name="separate, global",
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    window=None,
    tokens_per_block=12,
    sequences=((1, 1), (1, 16), (1, 33), (1, 129), (34, 130)),
)
SHARED = cases.Case(
    name="shared",
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    window=None,
    tokens_per_block=24,
    sequences=((1, 1), (1, 24), (1, 25), (1, 96), (33, 65)),
    num_rotated_pairs=16,
)
MANY_PAIRS = replace(SHARED, name="shared, half of the pairs rotate", num_rotated_pairs=32)


def real_sequences(tokens_per_block: int, window: int | None, longest: int) -> tuple[tuple[int, int], ...]:
    """Decoded rows, then runs whose first and last rows lie on both sides of edges."""
    edges = (tokens_per_block, 16, 32, 64, 128, 1024, *((window,) if window else ()))
    decoded = sorted({edge + shift for edge in edges for shift in (-1, 0, 1)} | {longest - 3, longest})
    return (*((1, length) for length in decoded), (64, 64), (129, 129), (300, longest), (33, 1056), (200, 2111))


def real(index: int, longest: int) -> cases.Case:
    case = cases.CASES[index]
    return replace(case, sequences=real_sequences(case.tokens_per_block, case.window, longest))


REAL = (real(0, 2500), real(1, 8200), real(3, 2500), real(4, 8200), real(5, 4100), real(6, 4100))
INT8, E4M3 = "int8_per_token_head", "fp8_e4m3"
if ON_GPU:
    KV_DTYPES = (None, INT8, E4M3, "fp8_per_token_head", "fp8_e5m2")
    BATCHES = [
        (case, plan, name) for case in REAL for plan in (plan_on_gpu, plan_invariant_on_gpu) for name in KV_DTYPES
    ]
    SHARES = [(case, name) for case in (REAL[1], REAL[3]) for name in (None, INT8)]
    PLANTED = [(case, plan) for case in REAL for plan in (plan_on_gpu, plan_invariant_on_gpu)]
else:
    # Every way to read a cache, each with a window or without. Runs of 8-bit numbers are unpacked to what others are.
    BATCHES = [(SLIDING, plan_on_gpu, None), (SLIDING, plan_on_gpu, INT8)]
    BATCHES += [(GLOBAL, plan_on_gpu, None), (GLOBAL, plan_on_gpu, E4M3), (SHARED, plan_on_gpu, None)]
    BATCHES += [(MANY_PAIRS, plan_on_gpu, name) for name in (None, INT8, E4M3)]
    BATCHES += [(SLIDING, plan_invariant_on_gpu, None)]
    BATCHES += [(GLOBAL, plan_invariant_on_gpu, E4M3), (SHARED, plan_invariant_on_gpu, INT8)]
    SHARES = [(GLOBAL, None), (SHARED, None), (MANY_PAIRS, INT8)]
    PLANTED = [(GLOBAL, plan_on_gpu), (SHARED, plan_on_gpu), (SLIDING, plan_reference), (SHARED, plan_reference)]


def name_of(value: object) -> str:
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


@pytest.mark.parametrize(("case", "make_plan", "kv_dtype"), BATCHES, ids=name_of)
def test_no_term_is_lost_or_doubled(
    case: cases.Case, make_plan: Callable[..., AttentionPlan], kv_dtype: str | None
) -> None:
    batch = exact_batch(case, HALF, DEVICE, kv_dtype=kv_dtype)
    inputs, plan = batch.inputs, batch.case.plan(batch.inputs, make_plan)
    first = None
    for _ in range(NUM_REPEATS):
        got = plan.run(inputs.queries, inputs.cache, scale=batch.case.scale, key_recipe=inputs.key_recipe)
        if first is None:
            first = got
            assert batch.is_exact(first)
        assert torch.equal(got, first)


@pytest.mark.parametrize("kv_dtype", [None, INT8, E4M3])
@pytest.mark.parametrize("make_plan", [plan_reference, plan_invariant_reference], ids=name_of)
@pytest.mark.parametrize("case", [SLIDING, GLOBAL, SHARED, MANY_PAIRS], ids=name_of)
def test_the_references_are_exact_too(
    case: cases.Case, make_plan: Callable[..., AttentionPlan], kv_dtype: str | None
) -> None:
    batch = exact_batch(case, torch.float32, kv_dtype=kv_dtype)
    assert batch.is_exact(batch.case.attend(batch.inputs, make_plan))


@pytest.mark.parametrize(
    ("num_splits", "last_merges", "num_programs"),
    [(3, True, None), (9, False, 2), *([(16, True, None), (16, True, 3), (70, False, None)] * ON_GPU)],
)
@pytest.mark.parametrize(("case", "kv_dtype"), SHARES, ids=name_of)
def test_shares_of_decoded_rows(
    case: cases.Case, num_splits: int, last_merges: bool, num_programs: int | None, kv_dtype: str | None
) -> None:
    """However many there are, and whoever puts them together."""
    case = replace(case, sequences=tuple(lens for lens in case.sequences if lens[0] == 1 and lens[1] > 24))
    batch = exact_batch(case, HALF, DEVICE, kv_dtype=kv_dtype)
    inputs, (plan,) = batch.inputs, batch.case.plan(batch.inputs, plan_on_gpu).decodes
    reader = choose_reader(inputs.queries, inputs.cache, inputs.key_recipe)
    chosen = choose_decode_tuning(reader, inputs.queries, inputs.cache, plan)
    tuning = replace(chosen, num_splits=num_splits, least_keys=16, last_merges=last_merges, num_programs=num_programs)
    for _ in range(NUM_REPEATS):
        got = torch.full_like(inputs.queries, float("nan"))
        attend_rows(inputs.queries, got, inputs.cache, plan, batch.case.scale, inputs.key_recipe, reader, tuning)
        assert batch.is_exact(got)


@pytest.mark.skipif(not ON_GPU, reason="in the interpreter they are what a plan chooses")
@pytest.mark.parametrize("case", REAL, ids=name_of)
def test_prefill_where_the_gpu_is_no_hopper(case: cases.Case) -> None:
    batch = exact_batch(replace(case, sequences=tuple(lens for lens in case.sequences if lens[0] > 1)), HALF, DEVICE)
    inputs, (plan,) = batch.inputs, batch.case.plan(batch.inputs, plan_on_gpu).prefills
    kernel = choose_triton_kernel(case.head_dim, HALF.itemsize, torch.device(DEVICE), is_shared=case.is_shared)
    for _ in range(NUM_REPEATS):
        got = torch.full_like(inputs.queries, float("nan"))
        attend_runs(inputs.queries, got, inputs.cache, plan, batch.case.scale, inputs.key_recipe, kernel)
        assert batch.is_exact(got)


@pytest.mark.parametrize(
    ("in_values", "factor"), [(True, 0.0), (False, 2.0)], ids=["a value's is lost", "a key's is doubled"]
)
@pytest.mark.parametrize(("case", "make_plan"), PLANTED, ids=name_of)
def test_one_wrong_term_shows(
    case: cases.Case, make_plan: Callable[..., AttentionPlan], in_values: bool, factor: float
) -> None:
    """In a decoded row, and in a run: one product of the lightest token, among millions where shapes are real."""
    decoded = max(lens for lens in case.sequences if lens[0] == 1)
    for lens in (decoded, case.sequences[-1]):
        batch = exact_batch(replace(case, sequences=(lens,)), HALF, DEVICE)
        plant(batch, 0, in_values=in_values, factor=factor)
        assert not batch.is_exact(batch.case.attend(batch.inputs, make_plan))


@pytest.mark.parametrize("by", [-1, 1])
def test_a_window_one_off_shows(by: int) -> None:
    batch = exact_batch(replace(SLIDING, sequences=((1, 65), (35, 70))), HALF, DEVICE)
    assert batch.case.window is not None
    moved = replace(batch.case, window=batch.case.window + by)
    assert not batch.is_exact(moved.attend(batch.inputs, plan_on_gpu))
