"""A decoder layer of Gemma 3 and 4: attention and feed-forward, each between two norms."""

from torch import Tensor, nn

from facet.kernels.after_attention import Weights, after_attention, can_run
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
        attended = self.attention.attend(self._normed(residual), step, cache, source, is_stored=is_stored)
        if len(attended) == 1 and (next_norm is None or next_norm.is_plain):
            weights = self._dense_weights()
            if weights is not None and can_run(attended, weights):
                next_weight = None if next_norm is None else next_norm.weight
                return Residual(*after_attention(attended, residual.stream, per_layer_input, weights, next_weight))
        update = self.attention.output(attended)
        x, h = self.post_attention_norm.add(residual.stream, update, then=self.pre_mlp_norm)
        assert h is not None, "a norm was named"
        update, norm = self._feed_forward(x, h), self.post_mlp_norm
        if self.per_layer_gate is not None:
            x, _ = norm.add(x, update)
            update, norm = self.per_layer_gate.project(x, per_layer_input), self.per_layer_gate.norm
        # The scalar multiplies the whole stream, not the update alone.
        return norm.add(x, update, then=next_norm, scale=self.layer_scalar)

    def store(self, residual: Residual, step: KindStep, cache: LayerCache) -> None:
        """The keys and values of rows that go no further."""
        self.attention.store(self._normed(residual), step, cache)

    def _dense_weights(self) -> Weights | None:
        """What follows attention, where it is all here, and nothing is quantized, sparse or chosen by a router."""
        gate = self.per_layer_gate
        products = [self.attention.output, self.mlp.gate_up, self.mlp.down]
        products += [] if gate is None else [gate.gate, gate.projection]
        values = [product.dense_values for product in products]
        if self.experts is not None or self.mlp.cutoff is not None or any(value is None for value in values):
            return None
        output, gate_up, down, *more = (value for value in values if value is not None)
        return Weights(
            output=output,
            output_norm=self.post_attention_norm.weight,
            gate_up_norm=self.pre_mlp_norm.weight,
            gate_up=gate_up,
            down=down,
            down_norm=self.post_mlp_norm.weight,
            gate=more[0] if more else None,
            projection=more[1] if more else None,
            projection_norm=None if gate is None else gate.norm.weight,
            scale=self.layer_scalar,
            eps=self.post_mlp_norm.eps,
        )

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
