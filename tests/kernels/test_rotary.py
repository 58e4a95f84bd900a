"""The rotation against its formula in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.rotary import apply_rotary, cases, rotary_table

TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.BFLOAT16}


def table_of(case: cases.Case, dtype: torch.dtype) -> Tensor:
    return rotary_table(
        max(case.positions) + 1,
        head_dim=case.head_dim,
        num_pairs=case.num_pairs,
        theta=case.theta,
        factor=case.factor,
        dtype=dtype,
    )


def angle(case: cases.Case, position: int, pair: int) -> float:
    frequency: float = case.theta ** (-2 * pair / case.head_dim)
    return position * frequency / case.factor


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Pair by pair: (j, j + half) turns for each j the table knows, everything else passes."""
    wide, half = x.double(), x.shape[-1] // 2
    out = wide.clone()
    for pair in range(cos_sin.shape[-1]):
        cos, sin = (cos_sin[:, index, pair].double()[:, None] for index in (0, 1))
        low, high = wide[..., pair], wide[..., pair + half]
        out[..., pair] = low * cos - high * sin
        out[..., pair + half] = high * cos + low * sin
    return out


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_rotation(case: cases.Case, dtype: torch.dtype) -> None:
    x, cos_sin = case.heads(dtype), table_of(case, dtype)[list(case.positions)]
    got = apply_rotary(x, cos_sin)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, rotate(x, cos_sin))


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_table(case: cases.Case) -> None:
    table = table_of(case, torch.float32)
    assert table.shape == (max(case.positions) + 1, 2, case.num_pairs)
    for position in case.positions:
        # The frequency and the product are each rounded once: the angle is off by two parts in 2^24, at most.
        error = 1e-6 + 2 * position / case.factor * 2**-23
        for pair in range(case.num_pairs):
            exact = angle(case, position, pair)
            assert abs(float(table[position, 0, pair]) - math.cos(exact)) <= error
            assert abs(float(table[position, 1, pair]) - math.sin(exact)) <= error


def test_bfloat16_angles_are_computed_in_float32() -> None:
    """Rounding a position of 4,000 to bfloat16 would move the angle by several radians."""
    case = cases.CASES[0]
    assert torch.equal(table_of(case, torch.bfloat16), table_of(case, torch.float32).to(torch.bfloat16))


def test_proportional_rotary_turns_the_dimensions_the_family_says() -> None:
    case = cases.CASES[1]
    x = case.heads(torch.float32)
    got = apply_rotary(x, table_of(case, torch.float32)[list(case.positions)])
    moved = (got != x).any(dim=0).any(dim=0).nonzero().flatten().tolist()
    assert moved == [*range(64), *range(256, 320)]


@given(
    num_heads=st.integers(1, 3),
    half=st.integers(1, 6),
    pairs=st.integers(0, 6),
    positions=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    factor=st.sampled_from([1.0, 8.0]),
)
def test_any_small_shape(num_heads: int, half: int, pairs: int, positions: list[int], factor: float) -> None:
    case = cases.Case(
        num_heads=num_heads,
        head_dim=2 * half,
        num_pairs=min(pairs, half),
        theta=1e4,
        factor=factor,
        positions=tuple(positions),
    )
    x, cos_sin = case.heads(torch.float32), table_of(case, torch.float32)[positions]
    got = apply_rotary(x, cos_sin)
    cases.FLOAT32.check(got, rotate(x, cos_sin))
    cases.FLOAT32.check(got.norm(dim=-1), x.norm(dim=-1))
