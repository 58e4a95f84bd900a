"""Prefill kernels for Hopper against the reference, emulated on a CPU and as they are on the card.

On the card, `test_paged_attention_prefill.py` and `test_paged_attention_exact.py` also test them on real shapes.
"""

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.paged_attention import LayerCache, cases
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.plan import SCRATCH_LIMIT, Run, plan_runs
from facet.kernels.paged_attention.reference import plan_reference
from tests.kernels.exact_attention import exact_batch, plant

pytest.importorskip("triton")
from facet.kernels.paged_attention.prefill.runs import PrefillKernel, attend_runs
from tests.kernels.gluon_emulator import emulated

ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICE = "cuda" if ON_HOPPER else "cpu"
pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")
emulated_only = pytest.mark.skipif(ON_HOPPER, reason="about the emulator")

ROOM = "facet.kernels.paged_attention.prefill.hopper"
KERNELS = {"shared_512": "Shared512Kernel", "separate_512": "Separate512Kernel", "separate_256": "Separate256Kernel"}

SHARED_512 = cases.Case(
    name="shared_512",
    num_heads=8,
    num_kv_heads=1,
    head_dim=512,
    window=None,
    tokens_per_block=40,
    sequences=((20, 90), (1, 9), (13, 200)),
    num_rotated_pairs=64,
)
SEPARATE_512 = replace(
    SHARED_512,
    name="separate_512",
    num_rotated_pairs=None,
    num_heads=4,
    sequences=((20, 20), (1, 9), (13, 200)),
)
SEPARATE_256 = replace(SEPARATE_512, name="separate_256", head_dim=256)
CASES = (
    SHARED_512,
    replace(SHARED_512, num_heads=32, num_kv_heads=2, sequences=((5, 130),)),
    SEPARATE_512,
    replace(SEPARATE_512, num_heads=2, num_kv_heads=2, sequences=((9, 64),)),
    SEPARATE_256,
    replace(SEPARATE_256, window=70, num_kv_heads=2, sequences=((140, 260), (7, 100))),
    replace(SEPARATE_256, window=70, num_heads=2, scale=256**-0.5, sequences=((140, 260),)),  # Gemma 3 12B
    replace(SEPARATE_256, window=1, sequences=((70, 90),)),
)


def kernel_of(case: cases.Case, **how: Any) -> PrefillKernel:
    names = ["facet.kernels.gluon_parts", f"{ROOM}.parts", f"{ROOM}.{case.name}"]
    module = importlib.import_module(names[-1]) if ON_HOPPER else emulated(names, "facet.kernels.gluon_names", **how)
    return getattr(module, KERNELS[case.name])()  # type: ignore[no-any-return]


def attended(
    case: cases.Case, inputs: cases.AttentionInputs, runs: list[Run], *, scratch_limit: int = SCRATCH_LIMIT, **how: Any
) -> Tensor:
    """What the kernel writes: NaN where there is no run."""
    plan = plan_runs(case.plan(inputs, PagedRows.of), runs, scratch_limit=scratch_limit)
    output = torch.full_like(inputs.queries, float("nan"))
    attend_runs(inputs.queries, output, inputs.cache, plan, case.scale, inputs.key_recipe, kernel_of(case, **how))
    return output


def runs_of(case: cases.Case) -> list[Run]:
    """Sequences of several rows."""
    runs, first_row = [], 0
    for num_rows, context_len in case.sequences:
        if num_rows > 1:
            runs.append(Run(first_row=first_row, num_rows=num_rows, context_len=context_len))
        first_row += num_rows
    return runs


def check(case: cases.Case, **how: Any) -> None:
    """The rows of runs are right, and no other row is written."""
    inputs = case.inputs(torch.bfloat16, DEVICE)
    output = attended(case, inputs, runs_of(case), **how)
    lens = torch.tensor([num_rows for num_rows, _ in case.sequences], device=DEVICE)
    in_run = torch.repeat_interleave(lens > 1, lens)
    assert output[~in_run].isnan().all()
    case.tolerance(torch.bfloat16).check(output[in_run], case.attend(widened(inputs), plan_reference)[in_run])


def widened(inputs: cases.AttentionInputs) -> cases.AttentionInputs:
    """The same numbers in float32, so that the reference does not round."""
    values, recipe = inputs.cache.values, inputs.key_recipe
    return replace(
        inputs,
        queries=inputs.queries.float(),
        cache=LayerCache(keys=inputs.cache.keys.float(), values=None if values is None else values.float()),
        key_recipe=None if recipe is None else replace(recipe, cos_sin=recipe.cos_sin.float()),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.window} {case.sequences}")
def test_same_as_the_reference(case: cases.Case) -> None:
    check(case)


@pytest.mark.parametrize("case", [*CASES[:1], *CASES[2:3], *CASES[4:6]], ids=lambda case: case.name)
def test_no_term_is_lost_or_doubled(case: cases.Case) -> None:
    """As in `test_paged_attention_exact.py`. One number of a value is then lost, which has to show."""
    batch = exact_batch(replace(case, sequences=((40, 220),)), torch.bfloat16, DEVICE)
    assert batch.is_exact(attended(batch.case, batch.inputs, runs_of(batch.case)))
    plant(batch, 0, in_values=True, factor=0.0)
    assert not batch.is_exact(attended(batch.case, batch.inputs, runs_of(batch.case)))


@pytest.mark.parametrize("case", [SHARED_512, SEPARATE_256], ids=lambda case: case.name)
def test_heads_in_slices(case: cases.Case) -> None:
    case = replace(case, num_heads=4, num_kv_heads=2, sequences=((9, 70),))
    inputs = case.inputs(torch.bfloat16, DEVICE)
    together = attended(case, inputs, runs_of(case))
    assert torch.equal(attended(case, inputs, runs_of(case), scratch_limit=1), together)


@pytest.mark.parametrize("case", [SHARED_512, SEPARATE_512, SEPARATE_256, CASES[5]], ids=lambda case: case.name)
def test_a_row_does_not_depend_on_its_chunk(case: cases.Case) -> None:
    """Bit for bit: of rows at positions 250 to 349, the last 33 come alone, as they would behind another cut."""
    case = replace(case, sequences=((100, 350),))
    inputs = case.inputs(torch.bfloat16, DEVICE)
    whole = attended(case, inputs, runs_of(case))
    tail = attended(case, inputs, [Run(first_row=67, num_rows=33, context_len=350)])
    assert torch.equal(tail[67:], whole[67:])


@emulated_only
@pytest.mark.parametrize("case", [SHARED_512, SEPARATE_512, SEPARATE_256], ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_whichever_partition_goes_first(case: cases.Case, seed: int) -> None:
    check(replace(case, sequences=((9, 300),)), seed=seed)


FAULTS = {
    "stored numbers reach a product without a fence": (
        SHARED_512,
        ("    fence_async_shared()\n    thread_barrier()\n    mbarrier", "    thread_barrier()\n    mbarrier"),
    ),
    "partitions wait for each other": (SHARED_512, ("    mbarrier.arrive(rotated_free, count=1)\n", "")),
    "other warps of the partition may be behind": (
        SEPARATE_512,
        ("        thread_barrier()\n        mbarrier.arrive(free", "        mbarrier.arrive(free"),
    ),
    "a product reads what has not landed": (
        SEPARATE_512,
        ("        mbarrier.wait(ready.index(slot), number // SLOTS & 1)\n", ""),
    ),
    "an operand changed under a product": (
        SEPARATE_256,
        ("weight_tiles.index((number + 1) % 2).store(weights)", "weight_tiles.index(number % 2).store(weights)"),
    ),
    "Tensor-likes are not close": (
        replace(SEPARATE_256, sequences=((3, 65),)),
        ("first_key + 64 > first_own + 1", "first_key + 64 > first_own + 2"),
    ),
}


@emulated_only
@pytest.mark.parametrize("finding", FAULTS)
def test_planted_faults_are_found(finding: str) -> None:
    case, change = FAULTS[finding]
    with pytest.raises(AssertionError, match=finding):
        check(case, change=change)
