"""A decoder layer of Gemma 3 and 4: attention and feed-forward, each between two norms."""

from torch import Tensor, nn

from facet.kernels.paged_attention import LayerCache
from facet.layers.attention import Attention, KindStep
from facet.layers.mlp import MLP
from facet.layers.moe import Experts
from facet.layers.per_layer_input import PerLayerGate
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual, RMSNorm
from facet.layers.weight import Inputs
from facet.model_spec import LayerSpec, ModelSpec


class DecoderLayer(nn.Module):
    """The stream, [rows, hidden], in and out."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.arithmetic = placement.arithmetic
        self.attention = Attention(layer, hidden, eps, placement)
        self.mlp = MLP(hidden, layer.mlp_width, layer.mlp_sparsity, placement)
        self.input_norm = RMSNorm(hidden, eps, placement, before=self.attention.projections)
        self.post_attention_norm = RMSNorm(hidden, eps, placement)
        self.pre_mlp_norm = RMSNorm(hidden, eps, placement, before=self.mlp.gate_up)
        self.post_mlp_norm = RMSNorm(hidden, eps, placement)
        self.experts = self.per_layer_gate = self.layer_scalar = None
        if layer.moe is not None:
            self.experts = Experts(layer.moe, hidden, eps, placement)
            self.dense_branch_norm = RMSNorm(hidden, eps, placement)
            self.expert_branch_norm = RMSNorm(hidden, eps, placement)
        if spec.per_layer_input is not None:
            self.per_layer_gate = PerLayerGate(hidden, spec.per_layer_input.width, eps, placement)
        if spec.has_layer_scalar:
            self.layer_scalar = placement.values(1)

    def forward(
        self,
        residual: Residual,
        per_layer_input: Tensor | None,
        step: KindStep,
        cache: LayerCache,
        source: Attention,
        next_norm: RMSNorm | None,
        *,
        is_stored: bool = False,
    ) -> Residual:
        """`is_stored`: `store` was called for these rows."""
        attended = self.attention(self._normed(residual), step, cache, source, is_stored=is_stored)
        x, h = self.post_attention_norm.add(residual.stream, attended, then=self.pre_mlp_norm)
        assert h is not None, "a norm was named"
        update, norm = self._feed_forward(x, h), self.post_mlp_norm
        if self.per_layer_gate is not None:
            x, h = norm.add_before(self.per_layer_gate.gate, x, update)
            update, norm = self.per_layer_gate.project(h, per_layer_input), self.per_layer_gate.norm
        # The scalar multiplies the whole stream, not the update alone.
        return norm.add(x, update, then=next_norm, scale=self.layer_scalar)

    def store(self, residual: Residual, step: KindStep, cache: LayerCache) -> None:
        """The keys and values of rows that go no further."""
        self.attention.store(self._normed(residual), step, cache)

    def _normed(self, residual: Residual) -> Inputs:
        return self.input_norm(residual.stream) if residual.normed is None else residual.normed

    def _feed_forward(self, x: Tensor, h: Inputs) -> Tensor:
        dense: Tensor = self.mlp(h)
        if self.experts is None:
            return dense
        dense_norm, expert_norm = self.dense_branch_norm, self.expert_branch_norm
        return self.arithmetic.sum_of_norms(
            dense, dense_norm.weight, self.experts(x), expert_norm.weight, dense_norm.eps
        )
