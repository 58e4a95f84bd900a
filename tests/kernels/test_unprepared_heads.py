"""Heads that attention prepares itself while it decodes, on Hopper GPUs: against those prepared before."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from facet.kernels import head_inputs
from facet.kernels.head_inputs import reference
from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention.decode.hopper import tuning as tuning_of_rings
from facet.kernels.paged_attention.decode.hopper import unprepared
from facet.kernels.paged_attention.decode.hopper.tuning import RingTuning
from facet.kernels.paged_attention.decode.plan import DecodePlan, plan_decode
from facet.kernels.paged_attention.plan import HeadsToPrepare, PagedRows
from facet.kernels.paged_attention.reference import plan_reference, row_places
from facet.kernels.rotary import rotary_table

pytest.importorskip("triton")
from facet.kernels.paged_attention.gpu import GpuPlan, plan_on_gpu
from tests.kernels.gluon_copies import COPIES, COPYING
from tests.kernels.gluon_emulator import emulated
from tests.kernels.ordered_sums import product
from tests.kernels.test_hopper_decode import DEVICE, ON_HOPPER, ROOM, _arrives_last

pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")

EPS = 1e-6
# The newest token in the first tile and later ones, at its beginning and end; contexts within a window and beyond.
SEQUENCES = tuple((1, length) for length in (1, 64, 65, 70, 9, 200, 128, 333))
SMALL = cases.Case(
    name="small", num_heads=4, num_kv_heads=2, head_dim=128, window=70, tokens_per_block=16, sequences=SEQUENCES
)
CASES = (
    SMALL,
    replace(SMALL, name="wide heads", head_dim=256, num_heads=8, num_kv_heads=1, window=130),
    replace(SMALL, name="without a window", window=None, tokens_per_block=40, head_dim=512, num_heads=8),
)


class KernelsBefore:
    """Of each program: what they leave is there when they are waited for."""

    def __init__(self) -> None:
        self.step: Step | None = None

    def start(self, *_: object) -> None:
        if self.step is not None:
            self.step.set_newest(torch.nan)

    def end(self, *_: object) -> None:
        if self.step is not None:
            self.step.restore()


BEFORE = KernelsBefore()


def kernels(change: tuple[str, str] | None = None) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.paged_attention.decode.hopper import ring

        return ring
    own = {
        **COPYING,
        "arrives_last": _arrives_last,
        "mma_v2": lambda left, right, sums: sums + product(left, right),
        "rounded_product": lambda a, b: a * b,
        "let_next_start": BEFORE.start,
        "wait_for_previous": BEFORE.end,
    }
    modules = [f"{ROOM}.{name}" for name in ("newest", "parts", "separate_kernel", "shared_kernel", "ring")]
    return emulated(modules, f"{ROOM}.language", own=own, change=change)


class Step:
    """Rows that are decoded, with what their projection left; and the same attended to after they were prepared."""

    def __init__(self, case: cases.Case, *, owns_keys: bool, num_pairs: int) -> None:
        self.case, self.inputs = case, case.inputs(torch.bfloat16, DEVICE)
        heads, num_rows = case.heads, len(case.sequences)
        generator = torch.Generator(DEVICE).manual_seed(1)

        def weight() -> Tensor:
            return torch.rand(case.head_dim, generator=generator, device=DEVICE) + 0.5

        num_vectors = heads.num_heads + 2 * heads.num_kv_heads * owns_keys
        wide = torch.randn(num_rows, (num_vectors + 1) * case.head_dim, generator=generator, device=DEVICE)
        table = rotary_table(
            400, head_dim=case.head_dim, num_pairs=num_pairs, theta=1e4, factor=1.0, dtype=torch.bfloat16, device=DEVICE
        )
        self.heads = HeadsToPrepare(
            projected=wide.bfloat16()[:, : num_vectors * case.head_dim],
            query_weight=weight(),
            key_weight=weight() if owns_keys else None,
            eps=EPS,
            cos_sin=table[self.inputs.rows.positions],
            values_are_normed=True,
        )
        blocks, slots = row_places(self.inputs.rows, self.inputs.block_table, tokens_per_block=case.tokens_per_block)
        self.places = (blocks, slots)
        cache = self.inputs.cache
        assert cache.values is not None
        self.newest = (cache.keys[blocks, slots].clone(), cache.values[blocks, slots].clone())
        self.set_newest(torch.nan)
        BEFORE.step = None if owns_keys else self

    def set_newest(self, number: float) -> None:
        assert self.inputs.cache.values is not None
        self.inputs.cache.keys[self.places], self.inputs.cache.values[self.places] = number, number

    def restore(self) -> None:
        assert self.inputs.cache.values is not None
        self.inputs.cache.keys[self.places], self.inputs.cache.values[self.places] = self.newest

    def plan(self) -> DecodePlan:
        rows = PagedRows.of(
            self.inputs.rows,
            self.inputs.block_table,
            self.case.heads,
            window=self.case.window,
            tokens_per_block=self.case.tokens_per_block,
        )
        longest = max(length for _, length in self.case.sequences)
        decoded = np.arange(len(self.case.sequences), dtype=np.int32)
        return plan_decode(rows, decoded, longest_context=longest, has_prompts=False)

    def prepare(self, prepare_heads: Any) -> Tensor:
        """Queries; and keys and values in their places."""
        if self.heads.key_weight is None:
            self.restore()
        return prepare_heads(
            self.heads.projected,
            self.case.heads,
            query_weight=self.heads.query_weight,
            key_weight=self.heads.key_weight,
            eps=EPS,
            cos_sin=self.heads.cos_sin,
            cache=None if self.heads.key_weight is None else self.inputs.cache,
            write_blocks=self.places[0],
            write_slots=self.places[1],
            values_are_normed=True,
        )

    def attend(self, ring: ModuleType, tuning: RingTuning, queries: Tensor, heads: HeadsToPrepare | None) -> Tensor:
        output, plan = torch.full_like(queries, torch.nan), self.plan()
        ring.attend_in_ring(queries, output, self.inputs.cache, plan, self.case.scale, None, tuning, heads)
        assert not COPIES.groups, "every copy is waited for"
        assert not plan.arrivals.any()
        return output


def tunings(case: cases.Case) -> list[RingTuning]:
    most = -(-case.window // 64) if case.window else 64
    return [
        RingTuning(share_keys=64, num_shares=most, num_programs=programs, num_slots=slots)
        for programs, slots in ((1, 2), (2, 3), (most, 3))
    ]


@pytest.mark.parametrize("part", [1, 4])
@pytest.mark.parametrize("owns_keys", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows(case: cases.Case, owns_keys: bool, part: int) -> None:
    """`part`: of the pairs that rotate."""
    ring = kernels()
    for tuning in tunings(case):
        step = Step(case, owns_keys=owns_keys, num_pairs=case.head_dim // 2 // part)
        if ON_HOPPER and not owns_keys:
            step.restore()  # there are no kernels that would
        got = step.attend(ring, tuning, step.inputs.queries, step.heads)
        keys, values = step.inputs.cache.keys.clone(), step.inputs.cache.values.clone()  # type: ignore[union-attr]
        assert torch.isfinite(got).all()
        if ON_HOPPER:  # bit for bit
            step.set_newest(torch.nan)
            queries = step.prepare(head_inputs.invariant_prepare_heads)
            assert torch.equal(got, step.attend(ring, tuning, queries, None))
            assert torch.equal(keys.nan_to_num(), step.inputs.cache.keys.nan_to_num())
            assert torch.equal(values.nan_to_num(), step.inputs.cache.values.nan_to_num())  # type: ignore[union-attr]
        step.set_newest(torch.nan)
        queries = step.prepare(reference.prepare_heads)
        plan = case.plan(step.inputs, plan_reference)
        expected = plan.run(queries, step.inputs.cache, scale=case.scale)
        case.tolerance(torch.bfloat16).check(got, expected)
        torch.testing.assert_close(keys, step.inputs.cache.keys, atol=2**-5, rtol=2**-6, equal_nan=True)
        torch.testing.assert_close(values, step.inputs.cache.values, atol=2**-5, rtol=2**-6, equal_nan=True)


@pytest.mark.skipif(ON_HOPPER, reason="about the emulator")
@pytest.mark.parametrize("owns_keys", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        ("rows == row % NEWEST", "rows == 0"),
        ("put_in_place(tiles.index((2 * tile + 1) % SLOTS), newest_row, low_value, high_value, HEAD_DIM)", "pass"),
        ("newest_row < TILE", "newest_row < 1"),
        ("return rotated(low, high, angles, HEAD_DIM, PAIRS)", "return low, high"),
        ("gl.sum(rounded_product(high, high), 1)", "0.0"),
    ],
)
def test_planted_faults_are_found(change: tuple[str, str], owns_keys: bool) -> None:
    step = Step(SMALL, owns_keys=owns_keys, num_pairs=64)
    got = step.attend(kernels(change), tunings(SMALL)[0], step.inputs.queries, step.heads)
    step.set_newest(torch.nan)
    queries = step.prepare(reference.prepare_heads)
    expected = SMALL.plan(step.inputs, plan_reference).run(queries, step.inputs.cache, scale=SMALL.scale)
    with pytest.raises(AssertionError):
        SMALL.tolerance(torch.bfloat16).check(got, expected)


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the emulator were a Hopper GPU, whose steps leave heads to attention."""
    monkeypatch.setattr(unprepared, "IS_SERVED", True)
    if not ON_HOPPER:
        monkeypatch.setattr(tuning_of_rings, "runs_on_hopper", lambda _device: True)
        monkeypatch.setattr(tuning_of_rings, "num_multiprocessors", lambda _device: 8)
        monkeypatch.setitem(sys.modules, f"{ROOM}.ring", kernels())


def run_unprepared(step: Step, **changes: Any) -> Tensor | None:
    plan: GpuPlan = step.case.plan(step.inputs, plan_on_gpu)
    heads, cache = (
        replace(given, **{name: value for name, value in changes.items() if hasattr(given, name)})
        for given in (step.heads, step.inputs.cache)
    )
    return plan.run_unprepared(heads, cache, scale=step.case.scale)


@pytest.mark.usefixtures("on_card")
@pytest.mark.parametrize("owns_keys", [True, False])
def test_a_plan_leaves_heads_to_the_ring(owns_keys: bool) -> None:
    step = Step(SMALL, owns_keys=owns_keys, num_pairs=64)
    if ON_HOPPER and not owns_keys:
        step.restore()
    got = run_unprepared(step)
    assert got is not None
    step.set_newest(torch.nan)
    queries = step.prepare(reference.prepare_heads)
    expected = SMALL.plan(step.inputs, plan_reference).run(queries, step.inputs.cache, scale=SMALL.scale)
    SMALL.tolerance(torch.bfloat16).check(got, expected)


@pytest.mark.usefixtures("on_card")
@pytest.mark.parametrize(
    "change",
    [
        {"sequences": (*SEQUENCES, (40, 90))},  # with a prompt
        {"sequences": ((40, 90),)},
        {"sequences": (*SEQUENCES, (2, 90))},  # of which some row has to be named
        {"num_rotated_pairs": 64},  # values are keys
        {"head_dim": 64},
    ],
    ids=lambda change: f"{next(iter(change))}",
)
def test_other_heads_are_prepared_before(change: dict[str, Any]) -> None:
    case = replace(SMALL, **change)
    step = Step(replace(SMALL, **{**change, "num_rotated_pairs": None}), owns_keys=True, num_pairs=case.head_dim // 2)
    cache = {"values": None} if case.is_shared else {}
    before = step.inputs.cache.keys.clone()
    assert run_unprepared(step, **cache) is None
    assert torch.equal(step.inputs.cache.keys.nan_to_num(), before.nan_to_num()), "nothing was done"


@pytest.mark.usefixtures("on_card")
def test_keys_that_are_values_and_wide_strides_are_prepared_before() -> None:
    step = Step(SMALL, owns_keys=True, num_pairs=64)
    width = (SMALL.num_heads + SMALL.num_kv_heads) * SMALL.head_dim
    assert run_unprepared(step, projected=step.heads.projected[:, :width]) is None
    assert run_unprepared(step, cos_sin=step.heads.cos_sin.transpose(1, 2).contiguous().transpose(1, 2)) is None
    assert run_unprepared(step) is not None


def test_nothing_is_left_before_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_of_rings, "runs_on_hopper", lambda _device: True)
    assert unprepared.IS_SERVED or run_unprepared(Step(SMALL, owns_keys=True, num_pairs=64)) is None
