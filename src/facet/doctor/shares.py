"""Expresses a result's error as the share of its tolerance that it uses: 1 is all of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.doctor.findings import Finding, measured
from facet.kernels.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Share:
    share: float  # the largest |got - expected| / (absolute + relative * |expected|)
    difference: float  # the largest |got - expected|

    def finding(self, check: str) -> Finding:
        return measured(check, self.share, 1.0, f"share of the tolerance; off by {self.difference:.2g}")


def share_of_tolerance(got: Tensor, expected: Tensor, tolerance: Tolerance) -> Share:
    """A deviation as a share of the tolerance. NaN in either is an infinite share, unless both hold it."""
    got, expected = got.double(), expected.double()
    difference = (got - expected).abs()
    difference = torch.where(got.isnan() & expected.isnan() | (got == expected), 0.0, difference)
    difference = torch.where(difference.isnan(), torch.inf, difference)
    allowed = tolerance.absolute + tolerance.relative * expected.nan_to_num().abs()
    shares = torch.where(difference == 0, 0.0, difference / allowed)
    return Share(float(shares.amax()), float(difference.amax())) if got.numel() else Share(0.0, 0.0)


def worst(shares: list[Share]) -> Share:
    return max(shares, key=lambda share: share.share, default=Share(0.0, 0.0))
