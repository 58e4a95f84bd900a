"""Runs of rows, unpacked and attended to: against the reference, however the work is cut and scheduled.

In Triton's interpreter on small shapes, on a GPU also on real ones.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from facet.kernels.paged_attention import HeadShape, cases
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.plan import (
    KEYS_PER_COPY,
    LEAST_RUN,
    SCRATCH_LIMIT,
    PrefillPlan,
    Run,
    max_scratch_bytes,
    plan_runs,
)
from facet.kernels.paged_attention.reference import plan_reference
from facet.kernels.rotary import apply_rotary

pytest.importorskip("triton")
from facet.kernels.paged_attention.gpu import choose_triton_kernel, plan_on_gpu
from facet.kernels.paged_attention.prefill.runs import attend_runs
from facet.kernels.paged_attention.prefill.tuning import PrefillTuning
from facet.kernels.paged_attention.prefill.unpack import make_scratch, unpack
from facet.kernels.paged_attention.prefill.visible import HIDDEN, LEAST, LOG2_E

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16

SMALL_TILES = PrefillTuning(block_m=32, block_n=16, num_warps=4, num_stages=1)
PLAIN_CASE = cases.Case(
    name="global, two runs",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    window=None,
    tokens_per_block=12,
    sequences=((18, 18), (1, 20), (21, 140)),
)


def case(name: str, group: int, window: int | None, **changes: object) -> cases.Case:
    return replace(PLAIN_CASE, name=name, num_heads=2 * group, window=window, **changes)  # type: ignore[arg-type]


CASES = (
    PLAIN_CASE,
    case("a head of its own for every query head", 1, None),
    case("eight query heads share a key head, rows do not fill a tile", 8, None, sequences=((9, 60),)),
    case("three query heads share a key head", 3, 50),
    case("window wider than a tile, rows late in the context", 4, 70, sequences=((25, 130), (2, 2), (17, 18))),
    case("window narrower than a tile", 2, 5, sequences=((25, 130), (20, 20))),
    case("window of one", 2, 1, sequences=((20, 40),)),
    case("window, scores of Gemma 3", 4, 70, sequences=((25, 130), (70, 170)), scale=256**-0.5),
    case("window longer than the context", 2, 1000, sequences=((20, 40),)),
    case("shared", 4, None, num_rotated_pairs=8, sequences=((13, 140), (1, 9), (10, 10))),
    case("shared, every pair rotates, a window", 2, 30, num_rotated_pairs=32, sequences=((20, 70),)),
)

SHARED_CASE = CASES[-2]


def planned(case: cases.Case, inputs: cases.AttentionInputs, rows_per_tile: int, scratch_limit: int) -> PrefillPlan:
    """Runs of several rows, however few."""
    runs, first_row = [], 0
    for num_rows, context_len in case.sequences:
        if num_rows > 1:
            runs.append(Run(first_row=first_row, num_rows=num_rows, context_len=context_len))
        first_row += num_rows
    rows = case.plan(inputs, PagedRows.of)
    return plan_runs(rows, runs, scratch_limit=scratch_limit, rows_per_tile=rows_per_tile)


def check(
    case: cases.Case,
    dtype: torch.dtype,
    tuning: PrefillTuning,
    *,
    scratch_limit: int = SCRATCH_LIMIT,
    num_tiles: int = 1,
) -> PrefillPlan:
    """The rows of runs are right, and no other row is written."""
    inputs = case.inputs(dtype, DEVICE)
    plan = planned(case, inputs, tuning.block_m * num_tiles, scratch_limit)
    is_shared = case.num_rotated_pairs is not None and case.num_rotated_pairs * 8 == case.head_dim
    chosen = choose_triton_kernel(case.head_dim, dtype.itemsize, torch.device(DEVICE), is_shared=is_shared)
    kernel = replace(chosen, tuning=tuning)
    output = torch.full_like(inputs.queries, float("nan"))
    attend_runs(inputs.queries, output, inputs.cache, plan, case.scale, inputs.key_recipe, kernel)
    lens = torch.tensor([num_rows for num_rows, _ in case.sequences], device=DEVICE)
    in_run = torch.repeat_interleave(lens > 1, lens)
    assert output[~in_run].isnan().all()
    case.tolerance(dtype).check(output[in_run], case.attend(inputs, plan_reference)[in_run])
    return plan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_as_the_reference(case: cases.Case) -> None:
    check(case, torch.float32, SMALL_TILES)


@pytest.mark.parametrize(
    "changes",
    [
        dict(use_tma=True),
        dict(num_parts=2),
        dict(use_tma=True, num_parts=2),
        dict(block_m=16, block_n=64),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=lambda case: case.name)
def test_however_it_is_scheduled(case: cases.Case, changes: dict[str, int]) -> None:
    tuning = PrefillTuning(block_m=64, block_n=32, num_warps=4, num_stages=2)
    check(case, HALF, replace(tuning, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{}, dict(num_stages=1), dict(block_m=16)], ids=str)
def test_however_shared_vectors_are_scheduled(changes: dict[str, int]) -> None:
    tuning = PrefillTuning(block_m=64, block_n=32, num_warps=4, num_stages=2)
    check(SHARED_CASE, HALF, replace(tuning, **changes))


@pytest.mark.parametrize("is_shared", [True, False])
def test_unpacked_vectors_are_those_of_the_pages(is_shared: bool) -> None:
    """Exactly: keys are rounded where the reference rounds, and what no key fills is zero.

    On a GPU a multiplication and an addition may become one operation, which spares one product its rounding. That
    moves a rotated key by a rounding step of the numbers of its pair at most.
    """
    case = SHARED_CASE
    inputs = case.inputs(HALF, DEVICE)
    assert inputs.key_recipe is not None
    plan = planned(case, inputs, 64, SCRATCH_LIMIT)
    (run_pass,) = plan.passes
    scratch = make_scratch(inputs.cache, run_pass, HALF, inputs.key_recipe, is_shared=is_shared)
    unpack(scratch, inputs.cache, plan.rows, run_pass, range(2), inputs.key_recipe)
    rotated = [*range(8), *range(32, 40)]
    still = [dim for dim in range(64) if dim not in rotated]
    first = 0
    for values in (inputs.values[0], inputs.values[2]):
        places = slice(first, first + len(values))
        weighted = (values * inputs.key_recipe.weight).to(HALF)
        keys = apply_rotary(weighted, inputs.key_recipe.cos_sin[: len(values)])
        pair_sizes = weighted.float().abs() + weighted.float().abs().roll(32, -1)
        allowed = pair_sizes * (torch.finfo(HALF).eps if ON_GPU else 0.0)
        key_dims, value_dims = (
            (rotated, still + rotated) if is_shared else (sorted(still + rotated), sorted(still + rotated))
        )
        key_errors = scratch.keys[:, places].float() - keys[..., key_dims].float().transpose(0, 1)
        assert (key_errors.abs() <= allowed[..., key_dims].transpose(0, 1)).all()
        assert torch.equal(scratch.values[:, places], values[..., value_dims].transpose(0, 1))
        for found in (scratch.keys, scratch.values):
            first_dead = places.stop
            last_dead = -(-first_dead // KEYS_PER_COPY) * KEYS_PER_COPY
            assert not found[:, first_dead:last_dead].any()
        first = last_dead


@given(st.floats(1e-3, 2.0))
@example(256**-0.5)  # Gemma 3, with which the hidden first tiles of a window once weighed more than any number
def test_a_row_that_has_seen_no_key_weighs_hidden_ones_with_zero(scale: float) -> None:
    """Also where a multiplication and a subtraction are one operation, which rounds once: here, double precision."""
    hidden, least = (float(np.float32(bound.value)) for bound in (HIDDEN, LEAST))
    scale = float(np.float32(scale * LOG2_E))
    greatest = max(least, float(np.float32(hidden * scale)))
    assert np.exp2(np.float32(hidden * scale - greatest)) == 0.0


def test_tiles_of_the_plan_may_be_larger_than_those_of_the_kernel() -> None:
    check(CASES[3], torch.float32, SMALL_TILES, num_tiles=4)


@pytest.mark.parametrize("case", [CASES[0], SHARED_CASE], ids=lambda case: case.name)
def test_heads_in_slices_and_runs_in_passes_where_scratch_is_small(case: cases.Case) -> None:
    """One copy of keys of one head takes 32 KiB: a run of 140 keys takes 2 of them for each of its 2 heads."""
    plan = check(case, torch.float32, SMALL_TILES, scratch_limit=2**16)
    assert sorted(run_pass.heads_per_slice for run_pass in plan.passes) == [1, 2]


def test_a_head_that_is_too_much_for_scratch_is_taken_alone() -> None:
    plan = check(replace(PLAIN_CASE, sequences=((18, 140),)), torch.float32, SMALL_TILES, scratch_limit=2**15)
    assert [(run_pass.heads_per_slice, run_pass.num_keys) for run_pass in plan.passes] == [(1, 2 * KEYS_PER_COPY)]


def test_rows_of_short_runs_are_decoded_beside_others() -> None:
    """Through the door that layers use."""
    case = replace(PLAIN_CASE, sequences=((1, 5), (LEAST_RUN, 200), (9, 20), (1, 30), (40, 40), (LEAST_RUN - 1, 90)))
    inputs = case.inputs(HALF, DEVICE)
    plan = case.plan(inputs, plan_on_gpu)
    (decode,), (prefill,) = plan.decodes, plan.prefills
    assert decode.row_map is not None
    assert decode.row_map.tolist() == [0, *range(33, 43), *range(83, 114)]
    assert (decode.num_rows, len(decode.arrivals), decode.most_keys) == (42, 42, 90)
    assert [run_pass.num_keys for run_pass in prefill.passes] == [3 * KEYS_PER_COPY]
    output = plan.run(inputs.queries, inputs.cache, scale=case.scale)
    case.tolerance(HALF).check(output, case.attend(inputs, plan_reference))


@pytest.mark.parametrize("window", [None, 10])
def test_short_runs_alone_have_a_map_too(window: int | None) -> None:
    case = replace(PLAIN_CASE, window=window, sequences=((9, 20), (1, 30), (2, 2)))
    inputs = case.inputs(torch.float32, DEVICE)
    plan = case.plan(inputs, plan_on_gpu)
    assert plan.prefills == ()
    (decode,) = plan.decodes
    assert decode.row_map is not None
    assert (decode.row_map.tolist(), decode.most_keys) == ([*range(12)], window or 30)
    output = plan.run(inputs.queries, inputs.cache, scale=case.scale)
    case.tolerance(torch.float32).check(output, case.attend(inputs, plan_reference))


def test_scratch_of_any_plan_is_within_what_is_accounted_for() -> None:
    generator = torch.Generator().manual_seed(0)
    heads = HeadShape(num_heads=32, num_kv_heads=16, head_dim=256)
    for window in (None, 64, 512):
        for limit in (SCRATCH_LIMIT, 2**24):
            lens = torch.randint(LEAST_RUN, 700, (6,), generator=generator).tolist()
            extra = torch.randint(0, 9000, (6,), generator=generator).tolist()
            runs = [
                Run(first_row=sum(lens[:index]), num_rows=lens[index], context_len=lens[index] + extra[index])
                for index in range(len(lens))
            ]
            assert most_taken(runs, heads, window, limit) <= min(limit, most_accounted_for(runs, heads, window))


def test_scratch_of_a_head_beyond_the_limit_is_accounted_for() -> None:
    heads = HeadShape(num_heads=32, num_kv_heads=4, head_dim=512)
    runs = [Run(first_row=0, num_rows=64, context_len=300_000)]
    assert SCRATCH_LIMIT < most_taken(runs, heads, None, SCRATCH_LIMIT) <= most_accounted_for(runs, heads, None)


def most_taken(runs: list[Run], heads: HeadShape, window: int | None, limit: int) -> int:
    nobody = torch.zeros(1, dtype=torch.int32)
    rows = PagedRows(
        heads=heads,
        positions=nobody,
        last_visible=nobody,
        seats=nobody,
        block_table=nobody,
        window=window or 0,
        tokens_per_block=16,
    )
    plan = plan_runs(rows, runs, scratch_limit=limit)
    return max(2 * part.heads_per_slice * part.num_keys * heads.head_dim * 2 for part in plan.passes)


def most_accounted_for(runs: list[Run], heads: HeadShape, window: int | None) -> int:
    return max_scratch_bytes(
        heads,
        window=window,
        max_context_len=max(run.context_len for run in runs),
        max_num_batched_tokens=sum(run.num_rows for run in runs),
        element_size=2,
    )


REAL_CASES = (
    replace(cases.CASES[1], name="E4B global, real tiles", sequences=((300, 300), (1, 700), (200, 2000))),
    replace(cases.CASES[2], name="E2B sliding, real tiles", window=512, sequences=((700, 1300), (140, 140))),
    replace(cases.CASES[3], name="31B sliding, real tiles", sequences=((700, 2300), (140, 140))),
    replace(
        cases.CASES[3],
        name="Gemma 3 12B sliding, real tiles",
        num_heads=16,
        num_kv_heads=8,
        sequences=((700, 2300), (1200, 1200)),
        scale=256**-0.5,
    ),
    replace(cases.CASES[4], name="31B global, shared, real tiles", sequences=((300, 1500), (1, 9))),
    replace(cases.CASES[5], name="12B global, shared, real tiles", sequences=((130, 1000),)),
    replace(cases.CASES[6], name="27B global, heads of 128, real tiles", sequences=((400, 900), (1, 84))),
)


@pytest.mark.skipif(not ON_GPU, reason="these shapes take minutes in the interpreter")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [*cases.CASES, *REAL_CASES], ids=lambda case: case.name)
def test_real_shapes(case: cases.Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, DEVICE)
    output = case.attend(inputs, plan_on_gpu)
    case.tolerance(dtype).check(output, case.attend(inputs, plan_reference))
