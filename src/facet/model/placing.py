"""Gives every product of a model the kind of weight that its matrices are kept in.

The formats of a model's matrices are known from a config or from the headers of files. They decide how much memory a
model takes, and which weights it is built with, before any weight is read.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from facet.kernels.quantized import QuantizedMatrix
from facet.layers.linear import Linear
from facet.layers.moe import Experts
from facet.layers.placement import Placement
from facet.layers.quantized_weight import PartsWeight, QuantizedWeight
from facet.layers.weight import DenseWeight, Weight
from facet.layers.weight_kinds import make_quantized_weight
from facet.model.gemma import Gemma
from facet.model.kept_matrices import KeptMatrix, kept_matrices
from facet.model.weight_formats import Formats
from facet.model.weight_map import PER_LAYER_TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutMatrices(Placement):
    """Parameters as ever, but matrices without memory, until `place_weights` has given them some."""

    def weight(self, *shape: int) -> Weight:
        empty = torch.empty(shape, dtype=self.dtype, device="meta")
        return DenseWeight(nn.Parameter(empty, requires_grad=False), self.arithmetic)


def place_weights(model: Gemma, formats: Formats, *, tables_on_host: bool = False) -> None:
    """Allocates every matrix of a model that was built without them; tables on request in the host's memory."""
    placement = model.placement
    dense = Placement(dtype=placement.dtype, device=placement.device, arithmetic=placement.arithmetic)
    by_place = kept_matrices(model.share, formats)
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            is_on_host = tables_on_host and name == PER_LAYER_TABLE
            where = replace(dense, device=torch.device("cpu")) if is_on_host else dense
            parts = [_weight(kept, where) for kept in by_place[name]]
            sizes = [kept.shape[-2] for kept in by_place[name]]
            module.weight = parts[0] if len(parts) == 1 else PartsWeight(parts, sizes, placement.arithmetic)
    for module in list(model.modules()):
        if isinstance(module, Experts):
            _let_kinds_differ(module)


def _weight(kept: KeptMatrix, placement: Placement) -> Weight:
    if kept.format is None:
        return placement.weight(*kept.shape)
    dtype, device, arithmetic = placement.dtype, placement.device, placement.arithmetic
    if kept.is_of_any_kind:
        matrix = QuantizedMatrix.empty(kept.format, kept.shape, device)
        return QuantizedWeight(matrix, dtype=dtype, arithmetic=arithmetic)
    return make_quantized_weight(kept.format, kept.shape, dtype=dtype, device=device, arithmetic=arithmetic)


def _let_kinds_differ(experts: Experts) -> None:
    """Dense experts take a second matrix of their own kind only: in front of another they count as a single part."""
    gate_up, down = experts.gate_up.weight, experts.down.weight
    if isinstance(gate_up, DenseWeight) and not isinstance(down, DenseWeight):
        experts.gate_up.weight = PartsWeight([gate_up], [gate_up.values.shape[-2]], gate_up.arithmetic)
