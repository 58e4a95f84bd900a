"""Attention of one layer: project, normalise, rotate, store, attend, project back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from facet.kernels.paged_attention import AttentionPlan, HeadShape, KeyRecipe, LayerCache
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.weight import Inputs
from facet.model_spec import AttentionKind, LayerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReads:
    """What one layer's queries are held against. Nothing here changes from step to step."""

    kind: AttentionKind
    cache: LayerCache
    scale: float
    key_recipe: KeyRecipe | None


# Parts of the packed projections.
_QUERIES, _KEYS_AND_VALUES = slice(0, 1), slice(1, None)

# Queries [rows, heads, head_dim] in, what they found out, likewise. It alone depends on which rows belong together.
Attend = Callable[[Tensor, LayerReads], Tensor]


@dataclass(frozen=True, slots=True)
class PlannedAttention:
    """Attention of one step's rows: the usual `Attend`."""

    plans: Mapping[AttentionKind, AttentionPlan]

    def __call__(self, queries: Tensor, reads: LayerReads, out: Tensor | None = None) -> Tensor:
        plan = self.plans[reads.kind]
        return plan.run(queries, reads.cache, scale=reads.scale, key_recipe=reads.key_recipe, out=out)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindStep:
    """What all layers of one kind have in common during one step."""

    heads: HeadShape
    attend: Attend
    cos_sin: Tensor  # [rows, 2, pairs]: the angles of this step's rows
    cos_sin_table: Tensor  # [positions, 2, pairs]: of every position
    write_blocks: Tensor  # [rows]
    write_slots: Tensor  # [rows]


class Attention(nn.Module):
    """The attention of a layer. It makes queries always, keys and values only where the layer owns them."""

    def __init__(self, layer: LayerSpec, hidden_size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.layer = layer
        self.eps = eps
        self.arithmetic = placement.arithmetic
        widths = [layer.query_width]
        if layer.owns_kv:
            widths += [layer.kv_width] * (1 if layer.values_are_keys else 2)
            self.key_norm = RMSNorm(layer.head_dim, eps, placement)
        self.projections = Linear(hidden_size, widths, placement)
        self.query_norm = RMSNorm(layer.head_dim, eps, placement)
        self.output = Linear(layer.query_width, hidden_size, placement, summed_over=placement.group)

    def forward(
        self, x: Inputs, step: KindStep, cache: LayerCache, source: "Attention", *, is_stored: bool = False
    ) -> Tensor:
        """x: [rows, hidden]. `cache` and `source` are those of the layer whose keys are read, often this one.

        `is_stored`: `store` was called for these rows.
        """
        if self.layer.owns_kv and not is_stored:
            queries = self._prepare(self.projections(x), step.heads, step, cache)
        else:
            queries = self._prepare(self.projections(x, _QUERIES), step.heads, step, None)
        reads = LayerReads(
            kind=self.layer.attention,
            cache=cache,
            scale=self.layer.attention_scale,
            key_recipe=source.key_recipe(step),
        )
        attended = step.attend(queries, reads)
        out: Tensor = self.output(attended.flatten(-2))
        return out

    def store(self, x: Inputs, step: KindStep, cache: LayerCache) -> None:
        """The keys and values of rows alone, without asking anything."""
        projected = self.projections(x, _KEYS_AND_VALUES)
        self._prepare(projected, replace(step.heads, num_heads=0), step, cache)

    def _prepare(self, projected: Tensor, heads: HeadShape, step: KindStep, cache: LayerCache | None) -> Tensor:
        return self.arithmetic.prepare_heads(
            projected,
            heads,
            query_weight=self.query_norm.weight,
            key_weight=self.key_norm.weight if self.layer.owns_kv else None,
            eps=self.eps,
            cos_sin=step.cos_sin,
            cache=cache,
            write_blocks=step.write_blocks,
            write_slots=step.write_slots,
            values_are_normed=self.layer.values_are_normed,
        )

    def key_recipe(self, step: KindStep) -> KeyRecipe | None:
        if not self.layer.values_are_keys:
            return None
        return KeyRecipe(weight=self.key_norm.weight, cos_sin=step.cos_sin_table)


def heads_of(layer: LayerSpec) -> HeadShape:
    return HeadShape(num_heads=layer.num_heads, num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim)
