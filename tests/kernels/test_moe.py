"""Routing and experts against their formulas in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.moe import cases, route, run_experts

TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.BFLOAT16}


def check_route(logits: Tensor, num_chosen: int, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen are the most probable (whichever of equals), and weighted as the formula says."""
    weights, chosen = route(logits, num_chosen, scale)
    assert weights.dtype == torch.float32
    for row in range(len(logits)):
        probabilities = torch.softmax(logits[row].double(), dim=-1)
        picked = chosen[row].tolist()
        assert len(set(picked)) == num_chosen
        best = sorted(probabilities.tolist(), reverse=True)[:num_chosen]
        assert [float(probabilities[expert]) for expert in picked] == pytest.approx(best, abs=1e-7)
        expected = [float(probabilities[expert] / sum(best) * scale[expert].double()) for expert in picked]
        cases.FLOAT32.check(weights[row], torch.tensor(expected))
    return weights, chosen


def experts_formula(inputs: cases.ExpertInputs, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros(inputs.x.shape, dtype=torch.float64)
    width = inputs.down.shape[-1]
    for row in range(len(inputs.x)):
        for weight, expert in zip(weights[row].double(), chosen[row].tolist(), strict=True):
            both = inputs.gate_up[expert].double() @ inputs.x[row].double()
            gate, up = both[:width], both[width:]
            gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
            out[row] += weight * (inputs.down[expert].double() @ (gelu * up))
    return out


def check_all(case: cases.Case, dtype: torch.dtype, seed: int = 0) -> None:
    inputs = case.inputs(dtype, seed=seed)
    weights, chosen = check_route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    got = run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, experts_formula(inputs, weights, chosen))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_cases(case: cases.Case, dtype: torch.dtype) -> None:
    check_all(case, dtype)


@given(
    num_rows=st.integers(1, 5),
    hidden=st.integers(1, 8),
    num_experts=st.integers(1, 6),
    num_chosen=st.integers(1, 6),
    width=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_any_small_shape(num_rows: int, hidden: int, num_experts: int, num_chosen: int, width: int, seed: int) -> None:
    case = cases.Case(
        num_rows=num_rows,
        hidden=hidden,
        num_experts=num_experts,
        num_chosen=min(num_chosen, num_experts),
        width=width,
    )
    check_all(case, torch.float32, seed)


def test_the_scale_of_an_expert_comes_after_renormalising() -> None:
    weights, _ = route(torch.zeros(1, 4), 2, torch.full((4,), 3.0))
    assert weights.tolist() == [[1.5, 1.5]]


def test_experts_nobody_chose_are_not_read() -> None:
    """NaN in their weights would show."""
    inputs = cases.CASES[1].inputs(torch.float32)
    chosen = torch.tensor([[3, 1]]).expand(len(inputs.x), 2)
    weights = torch.full(chosen.shape, 0.5)
    for unused in set(range(16)) - {1, 3}:
        inputs.gate_up[unused] = float("nan")
        inputs.down[unused] = float("nan")
    assert run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down).isfinite().all()


def test_company_does_not_change_a_row() -> None:
    case = cases.CASES[1]
    inputs = case.inputs(torch.float32)
    weights, chosen = route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    together = run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down)
    for row in range(len(inputs.x)):
        only = slice(row, row + 1)
        alone = run_experts(inputs.x[only], weights[only], chosen[only], inputs.gate_up, inputs.down)
        cases.FLOAT32.check(alone, together[only])
