"""The norm before a product, and the addition with a norm after one, against plain PyTorch."""

import pytest
import torch
from torch import Tensor

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.tolerance import Tolerance
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from tests.layers.other_weights import Int8ProductsAfterNorms, RoundedRows

WIDTH, EPS = 24, 1e-6
CLOSE = Tolerance(absolute=1e-5, relative=1e-5, why="a float32 mean of two dozen squares")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def make_norm(arithmetic: Arithmetic, seed: int, before: Linear | None = None) -> RMSNorm:
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), arithmetic=arithmetic)
    norm = RMSNorm(WIDTH, EPS, placement, before=before)
    norm.weight.data.copy_(normal(WIDTH, seed=seed))
    return norm


@pytest.mark.parametrize("arithmetic", [USUAL, BATCH_INVARIANT], ids=["usual", "invariant"])
def test_against_plain_pytorch(arithmetic: Arithmetic) -> None:
    norm, then = make_norm(arithmetic, 1), make_norm(arithmetic, 2)
    stream, update, scale = normal(5, WIDTH, seed=3), normal(5, WIDTH, seed=4), torch.tensor([0.7])
    CLOSE.check(norm(update), plain_norm(update, norm.weight))
    added = stream + plain_norm(update, norm.weight)
    bare = norm.add(stream, update)
    assert bare.normed is None
    CLOSE.check(bare.stream, added)
    residual = norm.add(stream, update, then=then, scale=scale)
    CLOSE.check(residual.stream, added * scale)
    CLOSE.check(residual.normed, plain_norm(added * scale, then.weight))


def test_the_product_behind_it_is_no_part_of_it() -> None:
    linear = Linear(WIDTH, 3, Placement(dtype=torch.float32, device=torch.device("cpu")))
    assert [name for name, _ in make_norm(USUAL, 1, before=linear).named_parameters()] == ["weight"]


def test_the_weight_that_is_held_now_says_what_comes_out() -> None:
    linear = Linear(WIDTH, 3, Placement(dtype=torch.float32, device=torch.device("cpu")))
    linear.fill(normal(3, WIDTH))
    norm, x = make_norm(USUAL, 1, before=linear), normal(5, WIDTH)
    assert isinstance(norm(x), Tensor)
    linear.weight = Int8ProductsAfterNorms.of(normal(3, WIDTH))
    for inputs in (norm(x), make_norm(USUAL, 2).add(x, x, then=norm).normed):
        assert isinstance(inputs, RoundedRows)
