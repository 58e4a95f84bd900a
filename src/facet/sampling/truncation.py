"""Computes which candidates may be sampled and how likely each is: temperature, min_p, top_k, top_p, in this order.

Everything is a function of one row alone, to the last bit: weights are relative to the row's best token, and
masses are summed as integers, so neither the width of the batch nor the order of a sum can move a boundary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.token_choice.reference import FIXED_POINT


@dataclass(frozen=True, slots=True)
class Truncation:
    """The settings of some rows, on the device, each [rows, 1]."""

    temperature: Tensor  # float32, above 0
    top_k: Tensor  # int64; the vocabulary's size where it is off
    top_p: Tensor  # float64
    min_p: Tensor  # float32
    # Whether any row needs it; known on the host, so that unused work is never launched.
    uses_top_k: bool  # False also where every row keeps as many as there are candidates
    uses_top_p: bool
    uses_min_p: bool

    def select(self, index: Tensor | slice) -> "Truncation":
        return Truncation(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            uses_top_k=self.uses_top_k,
            uses_top_p=self.uses_top_p,
            uses_min_p=self.uses_min_p,
        )


def relative_weights(logits: Tensor, row_max: Tensor, truncation: Truncation) -> Tensor:
    """Probabilities relative to the best token's, float32; 0 where min_p or a mask excludes the token.

    The maximum is subtracted before the division: a large bias over a small temperature stays finite.
    """
    weights = (logits - row_max).div_(truncation.temperature).exp_()
    if truncation.uses_min_p:
        weights.masked_fill_(weights < truncation.min_p, 0.0)
    return weights


def total_mass(weights: Tensor) -> Tensor:
    """The sum of weights, [rows, 1] int64, in fixed point."""
    return (weights * FIXED_POINT).to(torch.int64).sum(-1, keepdim=True)


def truncate(weights: Tensor, truncation: Truncation, vocabulary_mass: Tensor | None = None) -> Tensor:
    """Sets to zero, in place, the weights of ranked candidates (best first) that top_k and top_p exclude.

    `vocabulary_mass` is the mass top_p is a share of, where the candidates are not everything top_k leaves.
    """
    if truncation.uses_top_k:
        ranks = torch.arange(weights.shape[-1], device=weights.device)
        weights.masked_fill_(ranks >= truncation.top_k, 0.0)
    if truncation.uses_top_p:
        masses = (weights * FIXED_POINT).to(torch.int64)
        reached = masses.cumsum(-1)
        total = reached[:, -1:] if vocabulary_mass is None else vocabulary_mass
        weights.masked_fill_(reached - masses >= truncation.top_p * total, 0.0)
    return weights


def is_covered(weights: Tensor, truncation: Truncation, vocabulary_mass: Tensor) -> Tensor:
    """[rows]: the candidates hold all that top_p keeps. `weights` as before `truncate`."""
    return (total_mass(weights) >= truncation.top_p * vocabulary_mass).squeeze(1)
