"""Per-layer inputs: a second embedding with a slice for every layer, and the gate that adds it to a layer."""

from torch import Tensor, nn

from facet.layers.linear import Embedding, Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.weight import Inputs
from facet.model_spec import ModelSpec, PerLayerInputSpec


class PerLayerInputs(nn.Module):
    """Makes the inputs of a range of layers for some rows."""

    def __init__(self, spec: ModelSpec, per_layer: PerLayerInputSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = per_layer
        self.eps = spec.norm_eps
        widths = (per_layer.width,) * spec.num_layers
        self.table = Embedding(per_layer.vocab_size, sum(widths), per_layer.width**0.5, placement)
        self.projection = Linear(spec.hidden_size, widths, placement)
        self.norm = RMSNorm(per_layer.width, spec.norm_eps, placement)
        self.context_scale = spec.hidden_size**-0.5

    def forward(self, token_ids: Tensor, embedded: Tensor, layers: range) -> Tensor:
        """[rows, len(layers), width], for layers `layers` alone: the others' share is not computed."""
        context: Tensor = self.projection(embedded, slice(layers.start, layers.stop))
        return self.table.mix(
            context.view(-1, len(layers), self.spec.width),
            token_ids,
            self.norm.weight,
            first_column=layers.start * self.spec.width,
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
        out: Tensor = self.norm(self.project(x, per_layer_input))
        return out

    def project(self, x: Inputs, per_layer_input: Tensor | None) -> Tensor:
        """Like `forward`, but before the norm: whoever adds the result to the stream may do both at once."""
        assert per_layer_input is not None, "a layer with a gate has an input for it"
        out: Tensor = self.projection(self.gate.gated(x, per_layer_input))
        return out
