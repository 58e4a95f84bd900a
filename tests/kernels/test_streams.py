"""The sums over streams: the definition against a loop, and the invariant ones in any company."""

import pytest
import torch

from facet.kernels.streams import (
    cases,
    invariant_mean_of_streams,
    invariant_mix_streams,
    mean_of_streams,
    mix_streams,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NUM_ROWS = 37


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", cases.WIDTHS)
def test_mix(width: int, dtype: torch.dtype) -> None:
    coefficients, streams = cases.inputs(NUM_ROWS, width, dtype)
    mixed = [
        sum(coefficients[:, out, source, None].double() * streams[source].double() for source in range(len(streams)))
        for out in range(len(streams))
    ]
    expected = torch.stack(mixed)
    together = invariant_mix_streams(coefficients, streams)
    cases.TOLERANCES[dtype].check(mix_streams(coefficients, streams), expected)
    cases.TOLERANCES[dtype].check(together, expected)
    for rows in ([7], [36, 20, 3], list(range(5, 36))):
        assert torch.equal(invariant_mix_streams(coefficients[rows], streams[:, rows]), together[:, rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mean(dtype: torch.dtype) -> None:
    _, streams = cases.inputs(NUM_ROWS, 100, dtype)
    expected = streams.double().mean(dim=0)
    together = invariant_mean_of_streams(list(streams))
    cases.TOLERANCES[dtype].check(mean_of_streams(list(streams)), expected)
    cases.TOLERANCES[dtype].check(together, expected)
    for rows in ([7], [36, 20, 3], list(range(5, 36))):
        assert torch.equal(invariant_mean_of_streams([stream[rows] for stream in streams]), together[rows])
