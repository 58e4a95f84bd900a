"""Rows that are decoded through a ring, on Hopper GPUs: against the reference, emulated on a CPU and on the card."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention.decode.hopper.tuning import RingTuning, choose_ring_tuning, decodes_in_ring
from facet.kernels.paged_attention.decode.plan import plan_decode
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.reference import plan_reference

pytest.importorskip("triton")
from tests.kernels.gluon_copies import COPIES, COPYING
from tests.kernels.gluon_emulator import Pointer, emulated
from tests.kernels.ordered_sums import product

ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICE = "cuda" if ON_HOPPER else "cpu"
pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")

ROOM = "facet.kernels.paged_attention.decode.hopper"
# Contexts that are shorter than a window, as long, and longer; windows that begin with a page and within one.
SEQUENCES = tuple((1, length) for length in (9, 70, 71, 90, 200, 64, 1, 333))
SMALL = cases.Case(
    name="small", num_heads=4, num_kv_heads=2, head_dim=128, window=70, tokens_per_block=16, sequences=SEQUENCES
)
SHARED = replace(
    SMALL,
    name="shared vectors",
    window=None,
    head_dim=512,
    num_heads=16,
    num_rotated_pairs=64,
    tokens_per_block=40,
    sequences=((1, 70), (1, 64), (1, 9), (1, 300)),
)
CASES = (
    SMALL,
    replace(SMALL, name="two tiles of a share", window=300, num_heads=8),
    replace(SMALL, name="wide heads", head_dim=256, num_heads=8, num_kv_heads=1, window=130),
    replace(SMALL, name="head by head", num_heads=2, tokens_per_block=40),
    replace(SMALL, name="without a window", window=None, tokens_per_block=40),
    SHARED,
    replace(SMALL, name="shares that grow", window=None, head_dim=512, num_heads=8, sequences=((1, 1100), (1, 70))),
)
SHARES = {"two tiles of a share": 128}


def _arrives_last(arrivals: Pointer, place: int, num_arriving: int) -> bool:
    arrivals.numbers[place] += 1
    is_last = bool(arrivals.numbers[place] == num_arriving)
    if is_last:
        arrivals.numbers[place] = 0
    return is_last


@pytest.fixture(scope="module")
def ring() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.paged_attention.decode.hopper import ring

        return ring
    own = {
        **COPYING,
        "arrives_last": _arrives_last,
        "mma_v2": lambda left, right, sums: sums + product(left, right),
    }
    modules = [f"{ROOM}.{name}" for name in ("parts", "separate_kernel", "shared_kernel", "ring")]
    return emulated(modules, f"{ROOM}.language", own=own)


def attend(
    ring: ModuleType, case: cases.Case, inputs: cases.AttentionInputs, tuning: RingTuning, decoded: list[int]
) -> Tensor:
    """Without a map where all rows are decoded, one after the other."""
    rows = PagedRows.of(
        inputs.rows, inputs.block_table, case.heads, window=case.window, tokens_per_block=case.tokens_per_block
    )
    plan = plan_decode(
        rows,
        np.array(decoded, np.int32),
        longest_context=max(length for _, length in case.sequences),
        has_prompts=len(decoded) < len(inputs.queries),
    )
    output = torch.full_like(inputs.queries, float("nan"))
    ring.attend_in_ring(inputs.queries, output, inputs.cache, plan, case.scale, inputs.key_recipe, tuning)
    assert not COPIES.groups, "every copy is waited for"
    assert not plan.arrivals.any()
    return output


def tunings(case: cases.Case) -> list[RingTuning]:
    share = SHARES.get(case.name, 64)
    most = -(-case.window // share) if case.window else 64
    return [
        RingTuning(share_keys=share, num_shares=most, num_programs=programs, num_slots=slots, least_keys=keys)
        for programs, slots, keys in ((1, 3, 0), (1, 2, 0), (2, 3, 0), (most, 3, 128), (most + 2, 3, 0))
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows(ring: ModuleType, case: cases.Case) -> None:
    """No bit depends on how many programs a row has, nor on what else is decoded."""
    inputs = case.inputs(torch.bfloat16, DEVICE)
    everyone = list(range(len(case.sequences)))
    first, *others = (attend(ring, case, inputs, tuning, everyone) for tuning in tunings(case))
    case.tolerance(torch.bfloat16).check(first, case.attend(inputs, plan_reference))
    for other in others:
        assert torch.equal(other, first)
    some = [row for row in (1, 4, 7) if row in everyone]
    apart = attend(ring, case, inputs, tunings(case)[2], some)
    assert torch.equal(apart[some], first[some])
    assert apart[[row for row in everyone if row not in some]].isnan().all()


@pytest.mark.skipif(not ON_HOPPER, reason="real shapes are for the card")
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "window", "pairs"),
    [
        (8, 2, 256, 512, None),
        (8, 1, 256, 512, None),
        (32, 16, 256, 1024, None),
        (32, 16, 128, 1024, None),
        (4, 1, 256, 512, None),
        (8, 2, 512, None, None),
        (8, 1, 512, None, None),
        (32, 16, 128, None, None),
        (32, 4, 512, None, 64),
        (16, 2, 512, None, 64),
    ],
)
def test_rows_of_models(
    ring: ModuleType, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None, pairs: int | None
) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 3 * window if window else 9000, (37,), generator=generator).tolist()
    case = replace(
        SMALL,
        name="of models",
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        num_rotated_pairs=pairs,
        tokens_per_block=16 if window else 40,
        sequences=tuple((1, length) for length in lengths),
    )
    inputs = case.inputs(torch.bfloat16, DEVICE)
    first, *others = (attend(ring, case, inputs, tuning, list(range(37))) for tuning in tunings(case))
    case.tolerance(torch.bfloat16).check(first, case.attend(inputs, plan_reference))
    assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize(
    ("num_rows", "num_kv_heads", "window", "expected"),
    [
        (1, 2, 512, (64, 8, 8)),
        (32, 2, 512, (64, 8, 4)),
        (64, 2, 512, (64, 8, 1)),  # two programs of a row would fit: not worth it
        (32, 16, 1024, (64, 16, 1)),
        (1, 1, 4096, (256, 16, 16)),
        (1, 2, None, (64, 64, 64)),
        (100, 2, None, (64, 64, 8)),
    ],
)
def test_shares(
    num_rows: int,
    num_kv_heads: int,
    window: int | None,
    expected: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{ROOM}.tuning.num_multiprocessors", lambda _device: 132)
    case = replace(
        SMALL,
        num_kv_heads=num_kv_heads,
        num_heads=2 * num_kv_heads,
        head_dim=256,
        window=window,
        sequences=((1, 5),) * num_rows,
    )
    inputs = case.inputs(torch.bfloat16)
    rows = PagedRows.of(inputs.rows, inputs.block_table, case.heads, window=window, tokens_per_block=16)
    plan = plan_decode(rows, np.arange(num_rows, dtype=np.int32), longest_context=5, has_prompts=False)
    tuning = choose_ring_tuning(inputs.queries, inputs.cache, plan, is_invariant=True)
    assert (tuning.share_keys, tuning.num_shares, tuning.num_programs) == expected
    assert tuning.num_slots == (2 if window else 3)
    usual = choose_ring_tuning(inputs.queries, inputs.cache, plan, is_invariant=False)
    assert usual.num_shares == min(tuning.num_shares, 2**25 // (4 * inputs.queries.numel()) if window is None else 64)


def test_what_goes_through_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    def goes(
        case: cases.Case, dtype: torch.dtype = torch.bfloat16, *, is_invariant: bool = True, **given: bool
    ) -> bool:
        inputs = case.inputs(dtype)
        rows = PagedRows.of(
            inputs.rows, inputs.block_table, case.heads, window=case.window, tokens_per_block=case.tokens_per_block
        )
        plan = plan_decode(rows, np.arange(len(SEQUENCES), dtype=np.int32), longest_context=333, **given)
        return decodes_in_ring(inputs.queries, inputs.cache, plan, inputs.key_recipe, is_invariant=is_invariant)

    assert not goes(SMALL), "there is no Hopper GPU"
    monkeypatch.setattr(f"{ROOM}.tuning.runs_on_hopper", lambda _device: True)
    assert goes(SMALL)
    assert goes(SMALL, torch.float16)
    assert not goes(SMALL, torch.float32)
    assert goes(replace(SMALL, window=None, head_dim=512))
    shared = replace(SHARED, sequences=SEQUENCES)
    assert goes(shared)
    assert goes(shared, is_invariant=False)
    monkeypatch.setattr(f"{ROOM}.tuning.num_multiprocessors", lambda _device: 132)
    assert not goes(shared, is_invariant=False), "there is room for several programs of each row"
    assert not goes(replace(SMALL, window=None, head_dim=256, num_rotated_pairs=32))
    assert not goes(replace(SMALL, head_dim=64))
    assert not goes(replace(SMALL, num_heads=6)), "three heads of a key head"
    assert not goes(replace(SMALL, num_heads=32)), "sixteen"
    assert not goes(SMALL, has_prompts=False, may_share_seats=True), "rows of drafts"
    assert not goes(SMALL, has_drafts=True)
