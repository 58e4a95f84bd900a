"""A drafter of Gemma 4: four layers that read the keys and values of the model they draft for.

    token, hidden state of the model ─► projection ─► layers, which store nothing ─► norm ─┬─► logits of the draft
                                                                                          └─► projection ─► hidden state

Drafts of a round are chained: each takes the token drafted before it and the hidden state made along with it. All of
them ask from the same place, that of the last token whose keys are stored, and see what the model sees from there. So
attention is planned once for a round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import row_places
from facet.layers.attention import KindStep, PlannedAttention, heads_of
from facet.layers.decoder_layer import DecoderLayer
from facet.layers.kv_arena import KVArena
from facet.layers.linear import Embedding, Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual, RMSNorm
from facet.model.gemma import Gemma
from facet.model.shard import shard_of
from facet.model_spec import AttentionKind, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CentroidSpec:
    """The tokens are divided into equal clusters; only those of the likeliest clusters get logits."""

    num_clusters: int
    num_chosen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelSpec:
    decoder: ModelSpec  # its layers read keys of the model drafted for: `kv_from_layer` is a layer of that one
    backbone_size: int  # hidden size of the model drafted for
    centroids: CentroidSpec | None  # None: every token gets a logit


class DraftModel(nn.Module):
    """Parameters come uninitialised. Where ranks share the model, they share the layers, whose heads read the keys that
    are there; each has the rest whole, and drafts the same."""

    def __init__(self, spec: DraftModelSpec, target: Gemma) -> None:
        super().__init__()
        decoder, group = spec.decoder, target.placement.group
        # The target's own may be one for quantized matrices, which a drafter has none of.
        placement = Placement(
            dtype=target.placement.dtype, device=target.placement.device, arithmetic=target.placement.arithmetic
        )
        self.spec = spec
        share = decoder if group is None else shard_of(decoder, group.rank.size)
        self.share = replace(share, vocab_size=decoder.vocab_size)
        self.placement = placement
        self.num_positions = target.num_positions
        self._target = (target,)  # not a part of this module
        self.pre_projection = Linear(2 * spec.backbone_size, decoder.hidden_size, placement)
        self.layers = nn.ModuleList(
            DecoderLayer(decoder, layer, replace(placement, group=group)) for layer in self.share.layers
        )
        self.norm = RMSNorm(decoder.hidden_size, decoder.norm_eps, placement)
        self.embedding = Embedding(decoder.vocab_size, decoder.hidden_size, 1.0, placement)
        self.post_projection = Linear(decoder.hidden_size, spec.backbone_size, placement)
        self.centroids = None
        if spec.centroids is not None:
            self.centroids = Linear(decoder.hidden_size, spec.centroids.num_clusters, placement)
            ordering = torch.zeros(decoder.vocab_size, dtype=torch.int64, device=placement.device)
            self.register_buffer("token_ordering", ordering)

    def draft(self, token_ids: Tensor, hidden: Tensor, rows: AttentionRows, arena: KVArena, count: int) -> Tensor:
        """[rows, count] int64: how each sequence goes on behind its newest token.

        `hidden` [rows, backbone] is the model's last hidden state from which that token was chosen, and `rows` are at
        the positions of these states: the last whose keys are stored.
        """
        steps = self.plan(rows, arena)
        drafts = []
        for _ in range(count):
            token_ids, hidden = self.draft_one(token_ids, hidden, steps, arena)
            drafts.append(token_ids)
        return torch.stack(drafts, dim=1)

    def draft_one(
        self, token_ids: Tensor, hidden: Tensor, steps: Mapping[AttentionKind, KindStep], arena: KVArena
    ) -> tuple[Tensor, Tensor]:
        """The token behind each, and the hidden state to go on from. `steps` are what `plan` made."""
        state = self._run(token_ids, hidden, steps, arena)
        return self.best_tokens(state), self.post_projection(state)

    def best_tokens(self, state: Tensor) -> Tensor:
        if self.centroids is None:
            logits: Tensor = self.embedding(state)
            return logits.argmax(-1)
        token_ids, logits = self.candidates(state)
        return token_ids.gather(1, logits.argmax(-1, keepdim=True)).squeeze(1)

    def candidates(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that have logits, and these, both [rows, candidates]: those of the chosen clusters."""
        assert self.spec.centroids is not None, "without clusters every token is a candidate"
        assert self.centroids is not None
        chosen = self.centroids(state).topk(self.spec.centroids.num_chosen).indices
        clusters = self.get_buffer("token_ordering").view(self.spec.centroids.num_clusters, -1)
        token_ids = clusters[chosen].flatten(1)
        table = self.embedding.look_up(token_ids.flatten()).view(*token_ids.shape, -1)
        return token_ids, torch.bmm(table, state.unsqueeze(2)).squeeze(2)

    def _run(
        self, token_ids: Tensor, hidden: Tensor, steps: Mapping[AttentionKind, KindStep], arena: KVArena
    ) -> Tensor:
        (target,) = self._target
        residual = Residual(self.pre_projection(torch.cat([target.embed(token_ids), hidden], dim=-1)), None)
        for layer, module in zip(self.share.layers, self.layers, strict=True):
            assert layer.kv_from_layer is not None, "a drafter stores no keys"
            source = target.layers[layer.kv_from_layer].attention
            residual = module(residual, None, steps[layer.attention], arena.layer(layer.kv_from_layer), source, None)
        state: Tensor = self.norm(residual.stream)
        return state

    def plan(self, rows: AttentionRows, arena: KVArena) -> dict[AttentionKind, KindStep]:
        """How all drafts of a round attend."""
        (target,) = self._target
        layers = {layer.attention: layer for layer in self.share.layers}
        groups = dict(zip((group.kind for group in arena.layout.groups), rows.block_tables, strict=True))
        plans = PlannedAttention(
            {
                group.kind: target.placement.arithmetic.plan_attention(
                    rows,
                    groups[group.kind],
                    heads_of(layers[group.kind]),
                    window=group.window,
                    tokens_per_block=group.tokens_per_block,
                )
                for group in arena.layout.groups
                if group.kind in layers
            }
        )
        steps: dict[AttentionKind, KindStep] = {}
        for group in arena.layout.groups:
            if group.kind in layers:
                table = target.rotary.table(group.kind)
                blocks, slots = row_places(rows, groups[group.kind], tokens_per_block=group.tokens_per_block)
                steps[group.kind] = KindStep(
                    heads=heads_of(layers[group.kind]),
                    attend=plans,
                    cos_sin=table[rows.positions],
                    cos_sin_table=table,
                    write_blocks=blocks,
                    write_slots=slots,
                )
        return steps
