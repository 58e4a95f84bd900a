"""The decoder: one loop over layers for every Gemma. What differs between models is in the specs."""

from torch import Tensor, nn
from torch.nn import functional

from facet.forward_batch import AttentionRows, ForwardBatch
from facet.kernels.logits import softcap
from facet.kernels.paged_attention import HeadShape, plan_attention, row_places
from facet.layers.altup import AltUpLayer, Streams
from facet.layers.attention import KindStep
from facet.layers.decoder_layer import DecoderLayer
from facet.layers.kv_arena import KVArena
from facet.layers.linear import Linear
from facet.layers.per_layer_input import PerLayerInputs, rounded
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.rotary import RotaryTables
from facet.model_spec import AttentionKind, ModelSpec


class Gemma(nn.Module):
    """Token ids and an arena of keys and values in, the last hidden states of the wanted rows out.

    `num_positions` is the longest context this instance will see. Parameters come uninitialised; `checkpoint.py`
    and `dummy_weights.py` fill them.
    """

    def __init__(self, spec: ModelSpec, num_positions: int, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.num_positions = num_positions
        self.placement = placement
        self.embedding = placement.matrix(spec.vocab_size, spec.hidden_size)
        self.embedding_scale = rounded(spec.hidden_size**0.5, placement.dtype)
        self.per_layer_inputs = (
            PerLayerInputs(spec, spec.per_layer_input, placement) if spec.per_layer_input is not None else None
        )
        self.streams = Streams(spec.hidden_size, spec.altup.num_streams, placement) if spec.altup else None
        self.layers = nn.ModuleList(
            AltUpLayer(spec, layer, spec.altup, placement) if spec.altup else DecoderLayer(spec, layer, placement)
            for layer in spec.layers
        )
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps, placement)
        self.head = None if spec.tied_embeddings else Linear(spec.hidden_size, spec.vocab_size, placement)
        self.rotary = RotaryTables(spec.layers, num_positions, placement)

    def forward(self, batch: ForwardBatch, arena: KVArena) -> Tensor:
        """Hidden states [logit_rows, hidden], ready for `logits`. Writes this batch's keys and values into the arena.

        Layers from `first_shared_layer` on own no keys, so rows whose logits nobody wants stop there.
        """
        embedded = functional.embedding(batch.token_ids, self.embedding) * self.embedding_scale
        x = embedded if self.streams is None else self.streams.expand(embedded)
        upper_start = self.spec.num_layers if batch.upper_rows is None else self.spec.first_shared_layer

        lower = range(upper_start)
        steps = self._kind_steps(batch.rows, arena)
        x = self._run_layers(x, lower, self._layer_inputs(batch.token_ids, embedded, lower), steps, arena)
        x = x[..., batch.logit_rows, :]
        if batch.upper_rows is not None:
            upper = range(upper_start, self.spec.num_layers)
            steps = self._kind_steps(batch.upper_rows, arena)
            token_ids, embedded = batch.token_ids[batch.logit_rows], embedded[batch.logit_rows]
            x = self._run_layers(x, upper, self._layer_inputs(token_ids, embedded, upper), steps, arena)

        merged = x if self.streams is None else self.streams.merge(x)
        normed: Tensor = self.norm(merged)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] in float32. Apart from `forward`, since a caller may want them a few rows at a time."""
        weight = self.embedding if self.head is None else self.head.weight
        return softcap(functional.linear(hidden, weight), self.spec.logit_softcap)

    def _kind_steps(self, rows: AttentionRows, arena: KVArena) -> dict[AttentionKind, KindStep]:
        """What the layers of each kind share: planned once, used by every layer."""
        steps: dict[AttentionKind, KindStep] = {}
        for group, block_table in zip(arena.layout.groups, rows.block_tables, strict=True):
            table = self.rotary.table(group.kind)
            owner = self.spec.layers[group.stores[0].layer]
            blocks, slots = row_places(rows, block_table, tokens_per_block=group.tokens_per_block)
            steps[group.kind] = KindStep(
                plan=plan_attention(
                    rows,
                    block_table,
                    HeadShape(num_heads=owner.num_heads, num_kv_heads=owner.num_kv_heads, head_dim=owner.head_dim),
                    window=group.window,
                    tokens_per_block=group.tokens_per_block,
                ),
                cos_sin=table[rows.positions],
                cos_sin_table=table,
                write_blocks=blocks,
                write_slots=slots,
            )
        return steps

    def _layer_inputs(self, token_ids: Tensor, embedded: Tensor, layers: range) -> tuple[Tensor | None, ...]:
        if self.per_layer_inputs is None:
            return (None,) * len(layers)
        inputs: Tensor = self.per_layer_inputs(token_ids, embedded, layers)
        return inputs.unbind(dim=1)

    def _run_layers(
        self,
        x: Tensor,
        indices: range,
        inputs: tuple[Tensor | None, ...],
        steps: dict[AttentionKind, KindStep],
        arena: KVArena,
    ) -> Tensor:
        for index, per_layer_input in zip(indices, inputs, strict=True):
            layer = self.spec.layers[index]
            source = index if layer.kv_from_layer is None else layer.kv_from_layer
            step = steps[layer.attention]
            x = self.layers[index](x, per_layer_input, step, arena.layer(source), self.layers[source].attention)
        return x


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
