"""The soft cap against its formula in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.kernels.logits import cases, softcap


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cap", cases.CAPS)
def test_cases(cap: float | None, dtype: torch.dtype) -> None:
    logits = cases.logits(dtype)
    got = softcap(logits, cap)
    assert got.dtype == torch.float32
    expected = logits.double() if cap is None else cap * torch.tanh(logits.double() / cap)
    cases.FLOAT32.check(got, expected)


@given(st.lists(st.floats(-1e4, 1e4, width=32), max_size=8), st.sampled_from([1.0, 30.0, 50.0]))
def test_any_values(values: list[float], cap: float) -> None:
    got = softcap(torch.tensor(values), cap)
    cases.FLOAT32.check(got, torch.tensor([cap * math.tanh(value / cap) for value in values]))
    assert got.abs().le(cap).all()


def test_a_cap_keeps_neighbours_apart_that_bfloat16_would_join() -> None:
    """Two logits of a bfloat16 model whose capped values fall on the same bfloat16 number."""
    capped = softcap(torch.tensor([58.0, 58.25], dtype=torch.bfloat16), 30.0)
    assert capped[0] < capped[1]
    assert capped[0].bfloat16() == capped[1].bfloat16()


def test_nan_is_not_hidden() -> None:
    assert softcap(torch.tensor([float("nan"), 1.0]), 30.0).isnan().tolist() == [True, False]
