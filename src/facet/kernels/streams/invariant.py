"""Sums over streams, term by term, because a library would choose their order by the number of rows."""

from collections.abc import Sequence

from torch import Tensor


def mix_streams(coefficients: Tensor, streams: Tensor) -> Tensor:
    """Every stream's share of all of them: [rows, out, in] and [in, rows, hidden] make [out, rows, hidden]."""
    by_stream = coefficients.float().permute(2, 1, 0)[..., None]  # [in, out, rows, 1]
    return _sum([share * stream.float() for share, stream in zip(by_stream, streams, strict=True)]).to(streams.dtype)


def mean_of_streams(streams: Sequence[Tensor]) -> Tensor:
    """Several streams, [rows, hidden] each, as one."""
    return (_sum([stream.float() for stream in streams]) / len(streams)).to(streams[0].dtype)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    """One after the other, each sum rounded by itself."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
