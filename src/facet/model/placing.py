"""Gives every product of a model the kind of weight that its matrices are kept in.

The formats of a model's matrices are known from a config or from the headers of files. They decide how much memory a
model takes, and which weights it is built with, before any weight is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from facet.layers.gpu_weights import make_quantized_weight
from facet.layers.linear import Linear
from facet.layers.moe import Experts
from facet.layers.placement import Placement
from facet.layers.quantized_weight import PartsWeight, QuantizedWeight
from facet.layers.weight import DenseWeight, Weight
from facet.matrix_format import MatrixFormat
from facet.model.gemma import Gemma
from facet.model.weight_formats import Formats
from facet.model.weight_map import PER_LAYER_TABLE, TensorTarget, tensor_targets


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
    by_place: dict[str, list[TensorTarget]] = {}
    for target in tensor_targets(model.share):
        by_place.setdefault(target.place, []).append(target)
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            is_on_host = tables_on_host and name == PER_LAYER_TABLE
            where = replace(dense, device=torch.device("cpu")) if is_on_host else dense
            module.weight = _weight(by_place[name], formats, where)
    for module in list(model.modules()):
        if isinstance(module, Experts):
            _let_kinds_differ(module)


def _weight(targets: Sequence[TensorTarget], formats: Formats, placement: Placement) -> Weight:
    """Of a product whose parts these are: one weight where their rows can be stacked, else one for each part."""

    def made(format: MatrixFormat | None, shape: Sequence[int]) -> Weight:
        if format is None:
            return placement.weight(*shape)
        return make_quantized_weight(
            format, shape, dtype=placement.dtype, device=placement.device, arithmetic=placement.arithmetic
        )

    *stack, _, num_inputs = targets[0].shape
    sizes = [target.shape[-2] for target in targets]
    found = [formats.get(target.name) for target in targets]
    first = found[0]
    if first is None:
        is_one = not any(found)
    else:
        is_one = len(found) == 1 or all(format is not None and first.joins(format) for format in found)
    if is_one:
        return made(first, (*stack, sum(sizes), num_inputs))
    parts = [made(format, (*stack, size, num_inputs)) for format, size in zip(found, sizes, strict=True)]
    return PartsWeight(parts, sizes, placement.arithmetic)


def _let_kinds_differ(experts: Experts) -> None:
    """Dense experts take a second matrix of their own kind only: in front of another they count as a single part.
    Kernels for quantized ones multiply two of one format: others do without."""
    products = (experts.gate_up, experts.down)
    formats = {each.weight.format if isinstance(each.weight, QuantizedWeight) else None for each in products}
    for each in products:
        weight = each.weight
        if isinstance(weight, QuantizedWeight) and len(formats) > 1:
            each.weight = QuantizedWeight(weight.matrix, dtype=weight.dtype, arithmetic=weight.arithmetic)
    gate_up, down = (each.weight for each in products)
    if isinstance(gate_up, DenseWeight) and not isinstance(down, DenseWeight):
        experts.gate_up.weight = PartsWeight([gate_up], [gate_up.values.shape[-2]], gate_up.arithmetic)
