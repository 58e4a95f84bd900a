"""Per-layer inputs: a second embedding with a slice for every layer, and the gate through which a layer takes it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.kernels.per_layer_input import gate_per_layer_input, mix_per_layer_inputs
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.model_spec import ModelSpec, PerLayerInputSpec


class PerLayerInputs(nn.Module):
    """Makes the inputs of a range of layers for some rows."""

    def __init__(self, spec: ModelSpec, per_layer: PerLayerInputSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = per_layer
        self.eps = spec.norm_eps
        columns = spec.num_layers * per_layer.width
        self.table = placement.matrix(per_layer.vocab_size, columns)
        self.projection = Linear(spec.hidden_size, columns, placement)
        self.norm = RMSNorm(per_layer.width, spec.norm_eps, placement)
        self.token_scale = rounded(per_layer.width**0.5, placement.dtype)
        self.context_scale = spec.hidden_size**-0.5

    def forward(self, token_ids: Tensor, embedded: Tensor, layers: range) -> Tensor:
        """[rows, len(layers), width], for layers `layers` alone: the others' share is not computed."""
        columns = slice(layers.start * self.spec.width, layers.stop * self.spec.width)
        shape = (len(layers), self.spec.width)
        known = torch.where(token_ids < self.spec.vocab_size, token_ids, 0)
        token = functional.embedding(known, self.table[:, columns]) * self.token_scale
        context = functional.linear(embedded, self.projection.weight[columns])
        return mix_per_layer_inputs(
            context.view(-1, *shape),
            token.view(-1, *shape),
            self.norm.weight,
            context_scale=self.context_scale,
            eps=self.eps,
        )


class PerLayerGate(nn.Module):
    """What one layer adds to the stream from its per-layer input. The stream enters the gate un-normalised."""

    def __init__(self, hidden_size: int, width: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, width, placement)
        self.projection = Linear(width, hidden_size, placement)
        self.norm = RMSNorm(hidden_size, eps, placement)

    def forward(self, x: Tensor, per_layer_input: Tensor) -> Tensor:
        out: Tensor = self.norm(self.projection(gate_per_layer_input(self.gate(x), per_layer_input)))
        return out


def rounded(value: float, dtype: torch.dtype) -> float:
    """`value` as a tensor of this type holds it: scales are rounded before they are applied, and that shows."""
    return torch.tensor(value, dtype=dtype).item()
