"""The norm against its formula in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.rms_norm import cases, rms_norm, router_norms

TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.BFLOAT16}


def formula(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    rows = [
        row / (sum(float(value) ** 2 for value in row) / len(row) + eps) ** 0.5
        for row in x.double().view(-1, x.shape[-1])
    ]
    normed = torch.stack(rows).view(x.shape)
    return normed if weight is None else normed * weight.double()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_cases(case: cases.Case, dtype: torch.dtype) -> None:
    x, weight, eps = case.inputs(dtype)
    got = rms_norm(x, weight, eps)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, formula(x, weight, eps))


@given(
    num_rows=st.integers(0, 4),
    width=st.integers(1, 20),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    eps=st.sampled_from([1e-6, 1e-2]),
    seed=st.integers(0, 1000),
)
def test_any_small_shape(num_rows: int, width: int, size: float, eps: float, seed: int) -> None:
    case = cases.Case(shape=(max(num_rows, 1), width), with_weight=bool(seed % 2))
    x, weight, _ = case.inputs(torch.float32, seed=seed)
    x = size * x[:num_rows] if num_rows else x[:0]
    got = rms_norm(x, weight, eps)
    assert got.shape == x.shape
    if num_rows:
        cases.FLOAT32.check(got, formula(x, weight, eps))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_norms_of_a_router(dtype: torch.dtype) -> None:
    """The first is rounded three times."""
    x, weight, eps = cases.CASES[0].inputs(dtype)
    scale, factor = torch.linspace(0.5, 2.0, x.shape[-1]).to(dtype), x.shape[-1] ** -0.5
    scaled, normed = router_norms(x, scale, factor, weight, eps)
    assert normed is not None
    assert torch.equal(normed, rms_norm(x, weight, eps))
    expected = formula(x, scale, eps) * factor
    torch.testing.assert_close(scaled.double(), expected, atol=1e-6, rtol=4 * TOLERANCES[dtype].relative)
    assert router_norms(x, scale, factor, None, eps)[1] is None


def test_a_row_of_zeros_stays_zero() -> None:
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).eq(0).all()


def test_bfloat16_is_rounded_once_and_only_at_the_end() -> None:
    """The weight multiplies in float32: rounding before it would lose a bit that rounding after keeps."""
    x, weight, eps = cases.Case(shape=(64, 256), with_weight=True).inputs(torch.bfloat16)
    expected = formula(x, weight, eps).to(torch.bfloat16)
    # Not none: a float32 result may lie on the other side of a rounding boundary. Rounding twice moves one in four.
    assert (rms_norm(x, weight, eps) != expected).double().mean() <= 1e-3
