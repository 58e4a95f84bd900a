"""Pairs sorted and grouped by expert in Triton against the reference: in its interpreter, or on a GPU."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.moe import reference

pytest.importorskip("triton")
from facet.kernels.moe.triton_sorting import BLOCK, CHUNK, COUNTS, group_pairs

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def check(chosen: Tensor, num_experts: int, group_size: int) -> None:
    got = group_pairs(chosen.to(DEVICE), num_experts, group_size)
    expected = reference.group_pairs(chosen, num_experts, group_size)
    for name, numbers, expected_numbers in zip(got._fields, got, expected, strict=True):
        assert numbers.dtype == torch.int32
        assert numbers.tolist() == expected_numbers.tolist(), name


@given(
    num_rows=st.integers(1, 700),
    num_chosen=st.integers(1, 3),
    num_experts=st.integers(1, 40),
    group_size=st.sampled_from([8, 16, 64]),
    favour=st.floats(0.5, 4.0),
    seed=st.integers(0, 1000),
)
# A chunk and a block, and a pair more; a single expert; more experts than pairs.
@example(num_rows=CHUNK, num_chosen=1, num_experts=7, group_size=8, favour=1.0, seed=0)
@example(num_rows=CHUNK + 1, num_chosen=1, num_experts=7, group_size=8, favour=1.0, seed=0)
@example(num_rows=BLOCK, num_chosen=1, num_experts=7, group_size=8, favour=1.0, seed=0)
@example(num_rows=BLOCK + 1, num_chosen=1, num_experts=7, group_size=8, favour=1.0, seed=0)
@example(num_rows=2 * BLOCK, num_chosen=1, num_experts=1, group_size=64, favour=1.0, seed=0)
@example(num_rows=1, num_chosen=1, num_experts=40, group_size=8, favour=1.0, seed=0)
def test_groups_are_the_reference(
    num_rows: int, num_chosen: int, num_experts: int, group_size: int, favour: float, seed: int
) -> None:
    """`favour`: beyond 1, the first experts are chosen more often, and some of the last never."""
    drawn = torch.rand(num_rows, num_chosen, generator=torch.Generator().manual_seed(seed))
    check((drawn**favour * num_experts).long().clamp(max=num_experts - 1), num_experts, group_size)


@pytest.mark.parametrize(
    ("num_rows", "num_experts"), [(8, 128), (65, 128), (300, 130), *([(2048, 128), (20_000, 128)] * ON_GPU)]
)
def test_real_numbers_of_experts(num_rows: int, num_experts: int) -> None:
    """Each expert once in a row; one is in all rows."""
    logits = torch.randn(num_rows, num_experts, generator=torch.Generator().manual_seed(1))
    logits[:, 5] = 10.0
    check(logits.topk(8).indices, num_experts, 128 if num_rows > 1000 else 16)


def test_more_counts_than_are_added_at_a_time() -> None:
    """And more groups of an expert than there are programs."""
    chosen = torch.randint(0, 3, ((COUNTS + 2) * BLOCK + 5, 1), generator=torch.Generator().manual_seed(2))
    check(chosen, 3, 4)
