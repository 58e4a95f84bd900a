"""Per-layer inputs: a second embedding with a slice for every layer, and the gate through which a layer takes it."""

import torch
from torch import Tensor, nn

from facet.kernels.per_layer_input import mix_looked_up_inputs
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
        first, last = layers.start * self.spec.width, layers.stop * self.spec.width
        context: Tensor = self.projection(embedded, slice(first, last))
        return mix_looked_up_inputs(
            context.view(-1, len(layers), self.spec.width),
            token_ids,
            self.table,
            self.norm.weight,
            first_column=first,
            token_scale=self.token_scale,
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
        self.arithmetic = placement.arithmetic

    def forward(self, x: Tensor, per_layer_input: Tensor) -> Tensor:
        out: Tensor = self.norm(self.project(x, per_layer_input))
        return out

    def project(self, x: Tensor, per_layer_input: Tensor | None) -> Tensor:
        """As `forward`, before the norm: who adds the result to the stream may do both at once."""
        assert per_layer_input is not None, "a layer with a gate has an input for it"
        gated = self.arithmetic.gated_input_linear(x, self.gate.weight, per_layer_input)
        out: Tensor = self.projection(gated)
        return out


def rounded(value: float, dtype: torch.dtype) -> float:
    """`value` as a tensor of this type holds it: scales are rounded before they are applied, and that shows."""
    return torch.tensor(value, dtype=dtype).item()
