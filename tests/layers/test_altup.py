"""A layer of Gemma 3n by the kernels that it has on a GPU, against its own operations one by one. Attention is left
out, which has tests of its own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from facet.kernels.streams import Kernels, choose_kernels
from facet.kernels.tolerance import Tolerance
from facet.layers import altup
from facet.layers.altup import AltUpLayer
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual
from facet.model.families import read_model_spec
from tests.tiny_checkpoints import SHRUNK

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_ROWS = 5
CLOSE = Tolerance(absolute=1e-4, relative=1e-4, why="float32 through a whole layer, whose norms enlarge what differs")


class Doubling(nn.Module):
    """In the place of attention."""

    def forward(self, h: Tensor, *_args: object, is_stored: bool) -> Tensor:
        return 2 * h.roll(1, dims=-1)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_kernels_compute_what_the_layer_does(is_sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from facet.kernels.streams import triton

    spec = read_model_spec(SHRUNK["Gemma 3n E4B"])
    assert spec.altup is not None
    assert spec.per_layer_input is not None
    described = next(layer for layer in spec.layers if (layer.mlp_sparsity > 0) is is_sparse)
    layer: Any = AltUpLayer(spec, described, spec.altup, Placement(dtype=torch.float32, device=DEVICE))
    generator = torch.Generator(DEVICE).manual_seed(0)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
        else:
            parameter.data.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    layer.attention = Doubling()
    streams = torch.randn(spec.altup.num_streams, NUM_ROWS, spec.hidden_size, generator=generator, device=DEVICE)
    per_layer_input = torch.randn(NUM_ROWS, spec.per_layer_input.width, generator=generator, device=DEVICE)

    def run(kernels: Kernels | None) -> Tensor:
        monkeypatch.setattr(altup, "choose_kernels", lambda _x: kernels)
        residual: Residual = layer(Residual(streams.clone(), None), per_layer_input, None, None, None, None)
        return residual.stream

    got, expected = run(triton), run(None)
    CLOSE.check(got, expected)
    assert not torch.equal(got, expected), "sums are added in another order"


def test_a_processor_has_no_kernels() -> None:
    assert choose_kernels(torch.zeros(4, 1, 8)) is None
