"""A decoder layer of Gemma 3 and 4: attention and feed-forward, each between two norms."""

from torch import Tensor, nn

from facet.kernels.paged_attention import LayerCache
from facet.layers.attention import Attention, KindStep
from facet.layers.mlp import MLP
from facet.layers.moe import Experts
from facet.layers.per_layer_input import PerLayerGate
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.model_spec import LayerSpec, ModelSpec


class DecoderLayer(nn.Module):
    """x: [rows, hidden] in and out."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention = Attention(layer, hidden, eps, placement)
        self.mlp = MLP(hidden, layer.mlp_width, layer.mlp_sparsity, placement)
        self.input_norm = RMSNorm(hidden, eps, placement)
        self.post_attention_norm = RMSNorm(hidden, eps, placement)
        self.pre_mlp_norm = RMSNorm(hidden, eps, placement)
        self.post_mlp_norm = RMSNorm(hidden, eps, placement)
        self.experts = self.per_layer_gate = self.layer_scalar = None
        if layer.moe is not None:
            self.experts = Experts(layer.moe, hidden, eps, placement)
            self.dense_branch_norm = RMSNorm(hidden, eps, placement)
            self.expert_branch_norm = RMSNorm(hidden, eps, placement)
        if spec.per_layer_input is not None:
            self.per_layer_gate = PerLayerGate(hidden, spec.per_layer_input.width, eps, placement)
        if spec.has_layer_scalar:
            self.layer_scalar = placement.matrix(1)

    def forward(
        self, x: Tensor, per_layer_input: Tensor | None, step: KindStep, cache: LayerCache, source: Attention
    ) -> Tensor:
        x = x + self.post_attention_norm(self.attention(self.input_norm(x), step, cache, source))
        x = x + self.post_mlp_norm(self._feed_forward(x))
        if self.per_layer_gate is not None:
            x = x + self.per_layer_gate(x, per_layer_input)
        if self.layer_scalar is not None:
            x = x * self.layer_scalar  # the whole stream, not the update alone
        return x

    def _feed_forward(self, x: Tensor) -> Tensor:
        dense: Tensor = self.mlp(self.pre_mlp_norm(x))
        if self.experts is None:
            return dense
        total: Tensor = self.dense_branch_norm(dense) + self.expert_branch_norm(self.experts(x))
        return total
