"""What reads a weight, against plain PyTorch, in both arithmetics."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.tolerance import Tolerance
from facet.layers.linear import Embedding, Linear
from facet.layers.placement import Placement

NUM_ROWS, NUM_INPUTS = 5, 24
CLOSE = Tolerance(absolute=1e-5, relative=1e-5, why="float32 sums of two dozen products in another order")


@pytest.fixture(params=[USUAL, BATCH_INVARIANT], ids=["usual", "invariant"])
def placement(request: pytest.FixtureRequest) -> Placement:
    arithmetic: Arithmetic = request.param
    return Placement(dtype=torch.float32, device=torch.device("cpu"), arithmetic=arithmetic)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


class TestParts:
    SIZES = (16, 4, 7)

    def test_filled_one_by_one_in_any_order(self, placement: Placement) -> None:
        parts = [normal(size, NUM_INPUTS, seed=size) for size in self.SIZES]
        linear, whole = (Linear(NUM_INPUTS, self.SIZES, placement) for _ in range(2))
        for index in (2, 0, 1):
            linear.fill(parts[index], index)
        whole.fill(torch.cat(parts))
        x = normal(NUM_ROWS, NUM_INPUTS)
        assert torch.equal(linear(x), whole(x))
        CLOSE.check(linear(x), x @ torch.cat(parts).T)

    @pytest.mark.parametrize("some", [slice(0, 1), slice(1, None), slice(1, 2), slice(2, 3), slice(None)], ids=str)
    def test_some_of_them(self, some: slice, placement: Placement) -> None:
        parts = [normal(size, NUM_INPUTS, seed=size) for size in self.SIZES]
        linear = Linear(NUM_INPUTS, self.SIZES, placement)
        linear.fill(torch.cat(parts))
        x = normal(NUM_ROWS, NUM_INPUTS)
        CLOSE.check(linear(x, some), x @ torch.cat(parts[some]).T)

    def test_one_is_the_whole(self, placement: Placement) -> None:
        linear = Linear(NUM_INPUTS, 3, placement)
        linear.fill(normal(3, NUM_INPUTS), 0)
        x = normal(NUM_ROWS, NUM_INPUTS)
        assert torch.equal(linear(x), linear(x, slice(None)))

    def test_another_shape_is_refused(self, placement: Placement) -> None:
        with pytest.raises(RuntimeError):
            Linear(NUM_INPUTS, self.SIZES, placement).fill(normal(3, NUM_INPUTS), 1)


def test_gates(placement: Placement) -> None:
    gate, up, x = normal(8, NUM_INPUTS, seed=1), normal(8, NUM_INPUTS, seed=2), normal(NUM_ROWS, NUM_INPUTS)
    linear = Linear(NUM_INPUTS, (8, 8), placement)
    linear.fill(gate, 0)
    linear.fill(up, 1)
    CLOSE.check(linear.geglu(x), gelu(x @ gate.T) * (x @ up.T))
    gates = x @ gate.T
    cut = gates.mean(-1, keepdim=True) + 0.4 * gates.std(-1, correction=0, keepdim=True)
    CLOSE.check(linear.sparse_geglu(x, 0.4), gelu((gates - cut).clamp(min=0)) * (x @ up.T))
    narrow, given = Linear(NUM_INPUTS, 8, placement), normal(NUM_ROWS, 8, seed=3)
    narrow.fill(gate)
    CLOSE.check(narrow.gated(x, given), gelu(x @ gate.T) * given)


def test_experts(placement: Placement) -> None:
    num_experts, width = 6, 10
    gate, up = normal(num_experts, width, NUM_INPUTS, seed=1), normal(num_experts, width, NUM_INPUTS, seed=2)
    down_values, x = normal(num_experts, NUM_INPUTS, width, seed=3), normal(NUM_ROWS, NUM_INPUTS)
    gate_up = Linear(NUM_INPUTS, (width, width), placement, num_experts=num_experts)
    gate_up.fill(gate, 0)
    gate_up.fill(up, 1)
    down = Linear(width, NUM_INPUTS, placement, num_experts=num_experts)
    down.fill(down_values)
    weights, chosen = normal(NUM_ROWS, 2, seed=4), torch.tensor([[0, 5], [5, 1], [0, 3], [3, 5], [1, 0]])
    expected = torch.zeros(NUM_ROWS, NUM_INPUTS)
    for row, (experts, factors) in enumerate(zip(chosen, weights, strict=True)):
        for expert, factor in zip(experts, factors, strict=True):
            hidden = gelu(gate[expert] @ x[row]) * (up[expert] @ x[row])
            expected[row] += factor * (down_values[expert] @ hidden)
    tolerance = Tolerance(absolute=1e-4, relative=1e-4, why="two products, with sums near 100 between them")
    tolerance.check(gate_up.run_experts(x, weights, chosen, down), expected)


class TestEmbedding:
    IDS = torch.tensor([3, 0, 6, 3, 1])

    def test_rows_are_looked_up_and_multiplied(self, placement: Placement) -> None:
        table, x = normal(7, NUM_INPUTS), normal(NUM_ROWS, NUM_INPUTS, seed=1)
        embedding = Embedding(7, NUM_INPUTS, 3.0, placement)
        embedding.fill(table)
        assert torch.equal(embedding.look_up(self.IDS), table[self.IDS] * 3.0)
        CLOSE.check(embedding(x), x @ table.T)

    def test_the_scale_is_rounded_as_the_model_is(self) -> None:
        placement = Placement(dtype=torch.bfloat16, device=torch.device("cpu"))
        assert Embedding(7, NUM_INPUTS, 2560**0.5, placement).scale == 50.5

    def test_some_columns_are_mixed_with_a_context(self, placement: Placement) -> None:
        num_layers, width = 3, 4
        table, context = normal(7, 6 * width), normal(NUM_ROWS, num_layers, width, seed=1)
        weight = normal(width, seed=2)
        embedding = Embedding(7, 6 * width, 2.0, placement)
        embedding.fill(table)
        token = 2.0 * table[self.IDS].view(NUM_ROWS, 6, width)[:, 2:5]
        scaled = 0.5 * context
        normed = scaled * (scaled.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
        got = embedding.mix(context, self.IDS, weight, first_column=2 * width, context_scale=0.5, eps=1e-6)
        CLOSE.check(got, (normed + token) / 2**0.5)
