"""Attention of one layer: project, normalise, rotate, store, attend, project back."""

from dataclasses import dataclass

from torch import Tensor, nn

from facet.kernels.paged_attention import (
    AttentionPlan,
    KeyRecipe,
    LayerCache,
    paged_attention,
    write_keys_and_values,
)
from facet.kernels.rms_norm import rms_norm
from facet.kernels.rotary import apply_rotary
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.model_spec import LayerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KindStep:
    """What all layers of one kind have in common during one step."""

    plan: AttentionPlan
    cos_sin: Tensor  # [rows, 2, pairs]: the angles of this step's rows
    cos_sin_table: Tensor  # [positions, 2, pairs]: of every position
    write_blocks: Tensor  # [rows]
    write_slots: Tensor  # [rows]


class Attention(nn.Module):
    """Queries always; keys and values only where the layer owns them."""

    def __init__(self, layer: LayerSpec, hidden_size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.layer = layer
        self.eps = eps
        self.projection_widths = [layer.query_width]
        if layer.owns_kv:
            self.projection_widths += [layer.kv_width] * (1 if layer.values_are_keys else 2)
            self.key_norm = RMSNorm(layer.head_dim, eps, placement)
        self.projections = Linear(hidden_size, sum(self.projection_widths), placement)
        self.query_norm = RMSNorm(layer.head_dim, eps, placement)
        self.output = Linear(layer.query_width, hidden_size, placement)

    def forward(self, x: Tensor, step: KindStep, cache: LayerCache, source: "Attention") -> Tensor:
        """x: [rows, hidden]. `cache` and `source` are those of the layer whose keys are read, often this one."""
        projected, *own = self.projections(x).split(self.projection_widths, dim=-1)
        queries = self.query_norm(projected.view(-1, self.layer.num_heads, self.layer.head_dim))
        queries = apply_rotary(queries, step.cos_sin)
        if self.layer.owns_kv:
            self._store(own, step, cache)
        attended = paged_attention(
            queries, cache, step.plan, scale=self.layer.attention_scale, key_recipe=source.key_recipe(step)
        )
        out: Tensor = self.output(attended.flatten(-2))
        return out

    def _store(self, projected: list[Tensor], step: KindStep, cache: LayerCache) -> None:
        raw_keys, *rest = (tensor.view(-1, self.layer.num_kv_heads, self.layer.head_dim) for tensor in projected)
        raw_values = rest[0] if rest else raw_keys
        values = rms_norm(raw_values, None, self.eps) if self.layer.values_are_normed else raw_values
        if cache.values is None:
            write_keys_and_values(cache, values, None, step.write_blocks, step.write_slots)
        else:
            keys = apply_rotary(self.key_norm(raw_keys), step.cos_sin)
            write_keys_and_values(cache, keys, values, step.write_blocks, step.write_slots)

    def key_recipe(self, step: KindStep) -> KeyRecipe | None:
        if not self.layer.values_are_keys:
            return None
        return KeyRecipe(weight=self.key_norm.weight, cos_sin=step.cos_sin_table)
