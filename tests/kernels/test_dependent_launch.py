"""Kernels that start before the one ahead of them has ended compute what they compute one by one."""

import pytest
import torch
from torch import Tensor

from facet.kernels.add_norm import add_norm
from facet.kernels.linear import geglu_linear, linear
from facet.kernels.rms_norm import rms_norm

pytest.importorskip("triton")
from facet.kernels.dependent_launch import HOPPER, launch_options

ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= HOPPER
WIDTH, INNER, NUM_LAYERS, EPS = 2560, 10240, 6, 1e-6


def test_other_devices_know_nothing_of_it() -> None:
    assert launch_options(torch.device("cpu")) == {"IS_DEPENDENT": False}


@pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU")
def test_options() -> None:
    assert launch_options(torch.device("cuda", 0)) == {"IS_DEPENDENT": True, "launch_pdl": True}


class Chain:
    """Feed-forward layers and their norms. What a layer leaves behind, the next one's tensors overwrite."""

    def __init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def weight(*shape: int) -> Tensor:
            normal = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            return normal.mul_(shape[-1] ** -0.5)

        self.layers = [(weight(2 * INNER, WIDTH), weight(WIDTH, INNER)) for _ in range(NUM_LAYERS)]
        self.norm = torch.rand(WIDTH, generator=generator, device="cuda") + 0.5

    def run(self, x: Tensor, *, is_alone: bool = False) -> Tensor:
        """`is_alone`: every kernel finds an idle device."""

        def done(value: Tensor) -> Tensor:
            if is_alone:
                torch.cuda.synchronize()
            return value

        # After a copy, which is no kernel: nothing may start before it has ended.
        stream = done(x.clone())
        normed = done(rms_norm(stream, self.norm, EPS))
        for gate_up, down in self.layers:
            hidden = done(geglu_linear(normed, gate_up))
            update = done(linear(hidden, down))
            stream, next_normed = add_norm(stream, update, self.norm, self.norm, EPS)
            assert next_normed is not None
            normed = done(next_normed)
        return normed


@pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("num_rows", [1, 2, 16])
@torch.inference_mode()
def test_a_chain_is_bit_for_bit_what_its_kernels_are_alone(num_rows: int) -> None:
    """Through a graph, whose input is another at every replay: whoever reads too early finds the last one's values."""
    chain = Chain()
    inputs = [torch.randn(num_rows, WIDTH, device="cuda").to(torch.bfloat16) for _ in range(8)]
    expected = [chain.run(x, is_alone=True) for x in inputs]
    given = inputs[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain.run(given)
    for repeat in range(50):
        for x, right in zip(inputs, expected, strict=True):
            given.copy_(x)
            graph.replay()
            assert torch.equal(result, right), f"in round {repeat}"
    for x, right in zip(inputs, expected, strict=True):
        assert torch.equal(chain.run(x), right)
