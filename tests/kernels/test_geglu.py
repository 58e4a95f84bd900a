"""The gated activation against its formula in float64."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.geglu import cases, geglu, sparse_geglu

TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.BFLOAT16}
SPARSE_TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.SPARSE_BFLOAT16}


def gelu_tanh(u: Tensor) -> Tensor:
    return 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))


def formula(gate_up: Tensor, deviations: float | None = None) -> Tensor:
    rows = []
    for row in gate_up.double():
        gate, up = row[: len(row) // 2], row[len(row) // 2 :]
        if deviations is not None:
            cut = statistics.fmean(gate.tolist()) + deviations * statistics.pstdev(gate.tolist())
            gate = torch.where(gate > cut, gate - cut, 0.0)
        rows.append(gelu_tanh(gate) * up)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("width", cases.WIDTHS)
def test_geglu(width: int, dtype: torch.dtype) -> None:
    gate_up = cases.gate_up(width, dtype)
    got = geglu(gate_up)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, formula(gate_up))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("deviations", cases.SPARSITIES)
@pytest.mark.parametrize("width", cases.WIDTHS)
def test_sparse_geglu(width: int, deviations: float, dtype: torch.dtype) -> None:
    gate_up = cases.gate_up(width, dtype)
    got = sparse_geglu(gate_up, deviations)
    assert got.dtype == dtype
    SPARSE_TOLERANCES[dtype].check(got, formula(gate_up, deviations))


def test_a_sparsity_of_95_percent_lets_5_percent_through() -> None:
    (deviations,) = cases.SPARSITIES
    assert deviations == pytest.approx(statistics.NormalDist().inv_cdf(0.95))
    passed = sparse_geglu(cases.gate_up(10_240, torch.float32), deviations).ne(0).double().mean()
    assert 0.045 <= float(passed) <= 0.055


@given(num_rows=st.integers(1, 4), width=st.integers(1, 12), deviations=st.floats(-1, 2), seed=st.integers(0, 1000))
def test_any_small_shape(num_rows: int, width: int, deviations: float, seed: int) -> None:
    gate_up = cases.gate_up(width, torch.float32, seed=seed)[:num_rows]
    cases.FLOAT32.check(geglu(gate_up), formula(gate_up))
    cases.FLOAT32.check(sparse_geglu(gate_up, deviations), formula(gate_up, deviations))
