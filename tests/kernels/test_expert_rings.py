"""Experts through rings against plain products: emulated on a CPU; on the card bit for bit as in groups."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.linear.reference import geglu_linear, linear
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.moe import cases

pytest.importorskip("triton")
from facet.kernels.moe import rings, triton
from facet.kernels.moe.config import invariant_tiles
from facet.kernels.moe.triton_groups import combine
from tests.kernels.gluon_emulator import emulated
from tests.kernels.test_warpgroup_rings import DEVICE, NAMES, ON_HOPPER, emulated_only

pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")

# Outputs that are whole programs, more than that, fewer than one; inputs that are no whole tiles, or too few for rings.
CASES = (
    cases.Case(num_rows=1, hidden=192, num_experts=6, num_chosen=2, width=64),
    cases.Case(num_rows=8, hidden=128, num_experts=5, num_chosen=3, width=192),
    cases.Case(num_rows=5, hidden=64, num_experts=3, num_chosen=2, width=64),
)
RINGS = (
    (WarpgroupRing(32, 64, 2), WarpgroupRing(64, 64, 2)),
    (WarpgroupRing(48, 128, 3), WarpgroupRing(24, 128, 2)),
    (WarpgroupRing(96, 64, 2, num_rows=16), WarpgroupRing(96, 64, 3, num_rows=16)),
)


def kernels(**how: Any) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.moe import expert_rings

        return expert_rings
    linear_room, room = "facet.kernels.linear", "facet.kernels.moe"
    names = (f"{linear_room}.warpgroup_ring_parts", f"{room}.expert_ring_kernel", f"{room}.expert_rings")
    languages = ("facet.kernels.gluon_names", f"{linear_room}.language", f"{linear_room}.units", f"{room}.language")
    return emulated(["facet.kernels.gluon_parts", *names], *languages, own=NAMES, **how)


def choices(case: cases.Case) -> Tensor:
    """Of each row other experts; of several rows the same ones."""
    scores = torch.rand(case.num_rows, case.num_experts)
    return scores.topk(case.num_chosen).indices.to(DEVICE)


def by_pair(inputs: cases.ExpertInputs, chosen: Tensor) -> Tensor:
    rows = [
        linear(geglu_linear(inputs.x[None, row], inputs.gate_up[expert]), inputs.down[expert])
        for row, experts in enumerate(chosen.tolist())
        for expert in experts
    ]
    return torch.cat(rows)


@pytest.mark.parametrize("both", RINGS, ids=lambda both: f"{both[0].num_out} and {both[1].num_out}")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.num_rows} rows")
def test_experts(case: cases.Case, both: tuple[WarpgroupRing, WarpgroupRing]) -> None:
    inputs, chosen = case.inputs(torch.bfloat16, DEVICE), choices(case)
    expert_rings = kernels()
    assert expert_rings.can_run(inputs.x, inputs.gate_up, inputs.down)
    got = expert_rings.multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, both)
    cases.BFLOAT16.check(got, by_pair(inputs, chosen))


def test_what_other_rows_hold_does_not_matter() -> None:
    """Nor what experts hold that nobody chose: neither infinities nor numbers that are none."""
    case, both = CASES[1], RINGS[0]
    inputs, chosen = case.inputs(torch.bfloat16, DEVICE), torch.tensor([[0, 3, 1]] * case.num_rows, device=DEVICE)
    chosen[2] = torch.tensor([2, 0, 1])
    expected = kernels().multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, both)
    inputs.gate_up[4], inputs.down[4] = torch.inf, torch.inf
    inputs.x[2] = 1e30
    got = kernels().multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, both)
    others = torch.arange(case.num_rows * case.num_chosen, device=DEVICE) // case.num_chosen != 2
    assert torch.equal(got[others], expected[others])


def test_a_row_may_have_an_expert_twice() -> None:
    """As where ranks share them: who has none of a row's choices computes something that counts for nothing."""
    inputs, chosen = CASES[1].inputs(torch.bfloat16, DEVICE), choices(CASES[1])
    chosen[3] = torch.tensor([2, 4, 2])
    chosen[5] = torch.tensor([4, 4, 4])
    got = kernels().multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, RINGS[1])
    cases.BFLOAT16.check(got, by_pair(inputs, chosen))


def test_what_descriptors_cannot_tell() -> None:
    inputs = CASES[0].inputs(torch.bfloat16, DEVICE)
    can_run = kernels().can_run
    assert not can_run(inputs.x.float(), inputs.gate_up, inputs.down)
    assert not can_run(inputs.x, inputs.gate_up, inputs.down[..., :48].contiguous()), "not whole 64s of inputs"
    assert not can_run(inputs.x, inputs.gate_up.transpose(0, 1).contiguous().transpose(0, 1), inputs.down)


@emulated_only
@pytest.mark.parametrize("seed", range(1, 4))
def test_whenever_copies_land(seed: int) -> None:
    inputs, chosen = CASES[1].inputs(torch.bfloat16), choices(CASES[1])
    got = kernels(seed=seed).multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, RINGS[1])
    cases.BFLOAT16.check(got, by_pair(inputs, chosen))


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 16, 31])
def test_bits_are_those_of_groups(num_rows: int) -> None:
    case = cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=704)
    inputs, chosen = case.inputs(torch.bfloat16, DEVICE), choices(case)
    weights = torch.rand(num_rows, case.num_chosen, device=DEVICE)
    tiles = invariant_tiles(chosen.numel(), case.num_experts, 2)
    expected = triton.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down, tiles)
    tall = next(rows for rows in (8, 16, 32) if num_rows <= rows)
    both = (WarpgroupRing(96, 128, 4, num_rows=tall), WarpgroupRing(96, 64, 6, num_rows=tall))
    both = rings.rings_of(inputs.x, inputs.gate_up, inputs.down) or both
    got = kernels().multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, both)
    assert torch.equal(combine(got, weights), expected)


def test_rings_fit_into_a_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program of gate_up of 26B-A4B, two of down."""
    monkeypatch.setattr(rings, "runs_on_hopper", lambda _: True)
    gate_up, down = (torch.empty(1, *shape, dtype=torch.bfloat16) for shape in ((1408, 2816), (2816, 704)))

    def rings_of(num_rows: int) -> tuple[WarpgroupRing, WarpgroupRing] | None:
        return rings.rings_of(torch.empty(num_rows, 2816, dtype=torch.bfloat16), gate_up, down)

    chosen = rings_of(8)
    assert chosen is not None
    assert chosen == rings_of(1)
    assert rings_of(9) is None
    for ring, num_programs in zip(chosen, (1, 2), strict=True):
        assert ring.num_rows == 8
        assert ring.num_stages == 4
        assert num_programs * (ring.num_bytes + 1024) <= 228 << 10


@emulated_only
@pytest.mark.parametrize(
    "change",
    [
        ("matrix * part.block_shape[1]", "matrix"),
        ("(row * NUM_CHOSEN + choice).to", "(row * NUM_CHOSEN).to"),
        ("first_row = 0 if IS_FIRST else pair * ROWS", "first_row = 0"),
        ("is_there & (ids.to(gl.int32) == expert)", "is_there"),
    ],
)
def test_planted_faults_are_found(change: tuple[str, str]) -> None:
    inputs, chosen = CASES[1].inputs(torch.bfloat16), choices(CASES[1])
    expected = by_pair(inputs, chosen)
    got = kernels(change=change).multiply_pairs(inputs.x, chosen, inputs.gate_up, inputs.down, RINGS[0])
    with pytest.raises(AssertionError):
        cases.BFLOAT16.check(got, expected)
