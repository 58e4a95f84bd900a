"""The two ways to compute are two functions for each operation, and one can stand in for the other."""

from dataclasses import fields
from inspect import signature

import pytest

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic

CHOICES = [field.name for field in fields(Arithmetic)]
OPERATIONS = [name for name in CHOICES if callable(getattr(USUAL, name))]


@pytest.mark.parametrize("name", OPERATIONS)
def test_takes_the_same_arguments(name: str) -> None:
    usual, invariant = (signature(getattr(arithmetic, name)).parameters for arithmetic in (USUAL, BATCH_INVARIANT))
    assert [(p.name, p.kind) for p in usual.values()] == [(p.name, p.kind) for p in invariant.values()]


@pytest.mark.parametrize("name", CHOICES)
def test_an_operation_without_a_difference_has_no_line(name: str) -> None:
    assert getattr(USUAL, name) is not getattr(BATCH_INVARIANT, name)
