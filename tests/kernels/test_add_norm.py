"""The norms around a residual add: the reference against formulas in float64, the Triton kernels against the reference.

Triton's kernels run in its interpreter on small shapes, on a GPU on real ones.
"""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.add_norm import add_norm, cases, reference, sum_of_norms

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter rounds to bfloat16 in its own way, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16

any_dtype = pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
any_case = pytest.mark.parametrize("case", [*cases.SMALL_CASES, *(cases.CASES if ON_GPU else ())], ids=str)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + cases.EPS).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", cases.SMALL_CASES, ids=str)
def test_the_reference_follows_the_formula(case: cases.Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype)
    new, for_next = add_norm(
        inputs.residual, inputs.update, inputs.update_weight, inputs.next_weight, cases.EPS, inputs.scale
    )
    expected = (inputs.residual.double() + normed(inputs.update, inputs.update_weight)) * inputs.scale.double()
    assert for_next is not None
    assert new.dtype == for_next.dtype == dtype
    cases.TOLERANCES[dtype].check(new, expected)
    cases.TOLERANCES[dtype].check(for_next, normed(expected, inputs.next_weight))

    total = sum_of_norms(inputs.residual, inputs.next_weight, inputs.update, inputs.update_weight, cases.EPS)
    assert total.dtype == dtype
    cases.TOLERANCES[dtype].check(
        total, normed(inputs.residual, inputs.next_weight) + normed(inputs.update, inputs.update_weight)
    )


def _triton() -> ModuleType:
    pytest.importorskip("triton")
    from facet.kernels.add_norm import triton

    return triton


def test_without_a_scale_or_a_next_norm_those_steps_are_left_out() -> None:
    inputs = cases.SMALL_CASES[1].inputs(torch.float32, DEVICE)
    start = (inputs.residual, inputs.update, inputs.update_weight)
    for version in (reference, _triton()):
        plain, nothing = version.add_norm(*start, None, cases.EPS)
        scaled, normed_for_next = version.add_norm(*start, inputs.next_weight, cases.EPS, torch.ones_like(inputs.scale))
        assert nothing is None
        assert normed_for_next is not None
        assert torch.equal(plain, scaled)


@any_dtype
@any_case
@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("has_next", [False, True])
def test_add_norm_same_as_the_reference(case: cases.Case, dtype: torch.dtype, has_scale: bool, has_next: bool) -> None:
    inputs = case.inputs(dtype, DEVICE)
    arguments = (
        inputs.residual,
        inputs.update,
        inputs.update_weight,
        inputs.next_weight if has_next else None,
        cases.EPS,
        inputs.scale if has_scale else None,
    )
    new, for_next = _triton().add_norm(*arguments)
    expected_new, expected_next = reference.add_norm(*arguments)
    assert new.dtype == dtype
    assert new.data_ptr() not in (inputs.residual.data_ptr(), inputs.update.data_ptr())
    cases.TOLERANCES[dtype].check(new, expected_new)
    assert (for_next is None) == (not has_next)
    if has_next:
        assert for_next.dtype == dtype
        cases.TOLERANCES[dtype].check(for_next, expected_next)


@any_dtype
@any_case
def test_sum_of_norms_same_as_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, DEVICE)
    arguments = (inputs.residual, inputs.next_weight, inputs.update, inputs.update_weight, cases.EPS)
    got = _triton().sum_of_norms(*arguments)
    assert got.dtype == dtype
    cases.TOLERANCES[dtype].check(got, reference.sum_of_norms(*arguments))


def test_many_long_rows_read_their_weights_late(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _triton()
    from facet.kernels.rms_norm import triton as rows

    inputs = cases.Case(num_rows=3, width=1030).inputs(torch.float32, DEVICE)
    pair = (inputs.residual, inputs.update, inputs.update_weight, inputs.next_weight, cases.EPS, inputs.scale)
    branches = (inputs.residual, inputs.next_weight, inputs.update, inputs.update_weight, cases.EPS)
    monkeypatch.setattr(rows, "FEW_ROWS", 2)
    for got, expected in zip(fast.add_norm(*pair), reference.add_norm(*pair), strict=True):
        cases.FLOAT32.check(got, expected)
    cases.FLOAT32.check(fast.sum_of_norms(*branches), reference.sum_of_norms(*branches))


def test_half_precision_rounds_where_the_reference_rounds() -> None:
    """Rounding at other places would move a tenth of the results or more; the order of a sum, a few in a thousand."""
    inputs = cases.Case(num_rows=16, width=1300).inputs(HALF, DEVICE)
    arguments = (
        inputs.residual, inputs.update, inputs.update_weight, inputs.next_weight, cases.EPS, inputs.scale,
    )  # fmt: skip
    for got, expected in zip(_triton().add_norm(*arguments), reference.add_norm(*arguments), strict=True):
        assert got.ne(expected).double().mean() <= 5e-3


def test_no_rows_at_all() -> None:
    inputs = cases.SMALL_CASES[0].inputs(torch.float32, DEVICE)
    new, for_next = _triton().add_norm(
        inputs.residual[:0], inputs.update[:0], inputs.update_weight, inputs.next_weight, cases.EPS
    )
    assert new.shape == for_next.shape == (0, 96)
