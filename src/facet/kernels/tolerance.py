"""Tolerances: how far a fast kernel may be from its reference, and a reference from the exact formula."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """|got - expected| <= absolute + relative * |expected|, with the reason for the numbers."""

    absolute: float
    relative: float
    why: str

    def check(self, got: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(
            got.double(),
            expected.double(),
            atol=self.absolute,
            rtol=self.relative,
            msg=lambda text: f"{text}\nTolerance: {self.why}",
        )
