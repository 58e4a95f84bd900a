"""Where parameters are made, of what type, and how results are computed from them."""

from dataclasses import dataclass

import torch
from torch import nn

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The type of matrices and activations, and the device of everything. Norm weights are always float32."""

    dtype: torch.dtype
    device: torch.device
    arithmetic: Arithmetic = USUAL

    @property
    def is_batch_invariant(self) -> bool:
        """The bits of a row do not depend on the rows computed with it."""
        return self.arithmetic is BATCH_INVARIANT

    def matrix(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter of the model's type."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)

    def norm_weight(self, *shape: int) -> nn.Parameter:
        """An uninitialised float32 parameter: norms multiply by their weight before they round."""
        return nn.Parameter(torch.empty(shape, dtype=torch.float32, device=self.device), requires_grad=False)
