"""Sums of ranks in the order of the ranks."""

import pytest
import torch
from torch import Tensor

from facet.kernels.sum_over_ranks import sum_over_ranks
from facet.layers import rank_group
from facet.layers.rank_group import RankGroup
from tests.ranks import on_ranks

SIZE = 3


@pytest.mark.parametrize("shape", [(2, 5), (7, 9), (4, 6), (1,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most_short", [0, 1 << 20], ids=["in slices", "whole"])
def test_a_sum_is_in_the_order_of_the_ranks(
    shape: tuple[int, ...], dtype: torch.dtype, most_short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, on all ranks: parts of which any other order gives other sums."""
    monkeypatch.setattr(rank_group, "_SHORT", most_short)
    parts = torch.randn(SIZE, *shape, generator=torch.Generator().manual_seed(1))
    parts[0] *= 1e4
    parts[1] = -parts[0] * (1 + torch.rand(shape, generator=torch.Generator().manual_seed(2)) / 1e4)
    parts = parts.to(dtype)

    def body(group: RankGroup) -> Tensor:
        return group.sum(parts[group.rank.index].clone())

    expected = sum_over_ranks(parts)
    for total in on_ranks(SIZE, body, adds_in_order=True):
        assert total.shape == shape
        assert torch.equal(total, expected)
    if dtype == torch.float32 and len(shape) > 1:
        assert not torch.equal(sum_over_ranks(parts[[1, 2, 0]]), expected), "the order matters"
