"""What a layer of Gemma 3n does to all its streams: in one launch, against operation after operation."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.rms_norm.reference import rms_norm
from facet.kernels.streams import cases
from facet.kernels.streams.reference import mix_streams

pytest.importorskip("triton")
from facet.kernels.streams import triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
SIZES = ((4, 2048), (4, 100), (2, 48))
DTYPES = (torch.float32, torch.float16, *((torch.bfloat16,) if DEVICE == "cuda" else ()))
NUM_ROWS = 5
FEW = pytest.mark.parametrize(("num_streams", "width"), SIZES)
TYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Inputs:
    """Rows of streams that are not one block of memory, and weights."""

    def __init__(self, num_streams: int, width: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.dtype, self.num_streams, self.width = dtype, num_streams, width
        self.streams = self.normal(num_streams, NUM_ROWS + 2, width)[:, 1:-1]
        self.norms = [1 + 0.3 * self.normal(width).float() for _ in range(4)]
        self.router = 3 * self.normal(num_streams, width)
        self.prediction = 0.3 * self.normal(num_streams**2, num_streams)
        self.correction = 0.3 * self.normal(num_streams, num_streams)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype).to(DEVICE)

    def signs(self, x: Tensor) -> Tensor:
        return torch.tanh(functional.linear(rms_norm(x, self.norms[0], EPS) / self.width, self.router))


def check(got: Tensor, expected: Tensor) -> None:
    cases.TOLERANCES[expected.dtype].check(got, expected)


@TYPES
@FEW
def test_predict(num_streams: int, width: int, dtype: torch.dtype) -> None:
    inputs = Inputs(num_streams, width, dtype)
    weights = inputs.norms[0], inputs.router, inputs.prediction, inputs.norms[1], EPS
    shares = functional.linear(inputs.signs(inputs.streams[0]), inputs.prediction)
    expected = inputs.streams + mix_streams(shares.view(-1, num_streams, num_streams), inputs.streams)
    predicted, normed = triton.predict(inputs.streams, *weights)
    check(predicted, expected)
    check(normed, rms_norm(expected[0], inputs.norms[1], EPS))
    for rows in ([3], [4, 0]):
        alone = triton.predict(inputs.streams[:, rows], *weights)
        assert torch.equal(alone[0], predicted[:, rows])
        assert torch.equal(alone[1], normed[rows])


@TYPES
@FEW
def test_correct(num_streams: int, width: int, dtype: torch.dtype) -> None:
    inputs = Inputs(num_streams, width, dtype)
    active, scale = inputs.normal(NUM_ROWS, width), inputs.normal(width)
    weights = inputs.norms[0], inputs.router, inputs.correction, scale, EPS
    shares = functional.linear(inputs.signs(active), inputs.correction) + 1.0
    expected = inputs.streams + shares.T[..., None] * (active - inputs.streams[0])
    corrected, scaled = triton.correct(inputs.streams, active, *weights)
    check(corrected, expected)
    check(scaled, expected[0] * scale)
    alone = triton.correct(inputs.streams[:, [3]], active[[3]], *weights)
    assert torch.equal(alone[0], corrected[:, [3]])


@TYPES
@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("width", [2048, 100])
def test_join_paths(width: int, is_normed: bool, dtype: torch.dtype) -> None:
    inputs = Inputs(4, width, dtype)
    active, attended, h, detour = inputs.streams
    of_attended, of_detour, of_next = inputs.norms[:3]
    expected = active + rms_norm(attended, of_attended, EPS) + (h + rms_norm(detour, of_detour, EPS))
    expected = expected * 2.0**-0.5
    joined, normed = triton.join_paths(
        active, attended, of_attended, h, detour, of_detour, of_next if is_normed else None, EPS
    )
    check(joined, expected)
    assert (normed is None) is not is_normed
    if normed is not None:
        check(normed, rms_norm(expected, of_next, EPS))


@TYPES
@FEW
def test_inject(num_streams: int, width: int, dtype: torch.dtype) -> None:
    inputs = Inputs(num_streams, width, dtype)
    update, streams = inputs.normal(NUM_ROWS, width), inputs.streams.contiguous()
    expected = streams.clone()
    expected[1:] += rms_norm(update, inputs.norms[0], EPS)
    triton.inject(streams, update, inputs.norms[0], EPS)
    check(streams, expected)
    assert torch.equal(streams[0], expected[0])
