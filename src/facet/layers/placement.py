"""Says on which device and in which dtype parameters are created, and with which arithmetic they are used."""

from dataclasses import dataclass

import torch
from torch import nn

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.layers.rank_group import RankGroup
from facet.layers.weight import DenseWeight, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The type of weights and activations, and the device of everything. Parameters come uninitialised."""

    dtype: torch.dtype
    device: torch.device
    arithmetic: Arithmetic = USUAL
    group: RankGroup | None = None  # those that share the model's layers; None: it is all here

    @property
    def is_batch_invariant(self) -> bool:
        """The bits of a row do not depend on the rows computed with it."""
        return self.arithmetic is BATCH_INVARIANT

    @property
    def attends_by_role(self) -> bool:
        """Whether tokens of prompts and of answers have kernels of their own, and so would differ in the other's
        place."""
        return self.device.type in self.arithmetic.attends_by_role_on

    def weight(self, *shape: int) -> Weight:
        return DenseWeight(self._parameter(self.dtype, *shape), self.arithmetic)

    def values(self, *shape: int) -> nn.Parameter:
        """Numbers of the model's type that are no product's: scales, biases, tables of positions."""
        return self._parameter(self.dtype, *shape)

    def norm_weight(self, width: int) -> nn.Parameter:
        """The weight of a norm, in float32: norms multiply by it before they round."""
        return self._parameter(torch.float32, width)

    def _parameter(self, dtype: torch.dtype, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, dtype=dtype, device=self.device), requires_grad=False)
