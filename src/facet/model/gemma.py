"""The decoder: one loop over layers for every Gemma. What differs between models is in the specs."""

from collections.abc import Mapping

from torch import Tensor, nn

from facet.forward_batch import AttentionRows, ForwardBatch, SoftRows
from facet.kernels.logits import softcap
from facet.kernels.paged_attention import row_places
from facet.layers.adapted_weight import RowAdapters
from facet.layers.altup import AltUpLayer, Streams
from facet.layers.attention import Attend, KindStep, PlannedAttention, heads_of
from facet.layers.decoder_layer import DecoderLayer
from facet.layers.kv_arena import KVArena
from facet.layers.linear import Embedding, Linear
from facet.layers.per_layer_input import PerLayerInputs
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual, RMSNorm
from facet.layers.rotary import RotaryTables
from facet.model_spec import AttentionKind, ModelSpec


class Gemma(nn.Module):
    """Token ids and an arena of keys and values in, the last hidden states of the wanted rows out.

    `num_positions` is the longest context this instance will see. Parameters come uninitialised; `checkpoint.py`
    and `dummy_weights.py` fill them. Where ranks share a model, `share` is the spec of what this one holds: heads and
    logits are a part of the model's, hidden states are all of them.
    """

    def __init__(
        self, spec: ModelSpec, num_positions: int, placement: Placement, share: ModelSpec | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        self.share = share = share or spec
        self.num_positions = num_positions
        self.placement = placement
        self.embedding = Embedding(
            share.vocab_size, spec.hidden_size, spec.hidden_size**0.5, placement, is_head=spec.tied_embeddings
        )
        self.per_layer_inputs = (
            PerLayerInputs(spec, share.per_layer_input, placement) if share.per_layer_input is not None else None
        )
        self.streams = Streams(spec.hidden_size, spec.altup.num_streams, placement) if spec.altup else None
        self.layers = nn.ModuleList(
            AltUpLayer(spec, layer, spec.altup, placement) if spec.altup else DecoderLayer(spec, layer, placement)
            for layer in share.layers
        )
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps, placement)
        self.head = None if spec.tied_embeddings else Linear(spec.hidden_size, share.vocab_size, placement)
        self.rotary = RotaryTables(spec.layers, num_positions, placement)
        self.row_adapters = RowAdapters()
        self.has_adapters = False  # `model/adapters` says otherwise

    def forward(self, batch: ForwardBatch, arena: KVArena, num_lower: int | None = None) -> Tensor:
        """Hidden states [logit_rows, hidden], ready for `logits`. Writes this batch's keys and values into the arena.

        With upper rows, rows whose logits nobody wants stop behind `num_lower` layers: as soon as may be, where None.
        """
        upper_rows = batch.upper_rows
        if upper_rows is None:
            num_lower = self.spec.num_layers
        elif num_lower is None:
            num_lower = self.spec.last_owning_layer
        embedded = self.embed(batch.token_ids, batch.soft)
        stream = self.lower(batch.token_ids, batch.rows, arena, num_lower, embedded=embedded)
        wanted = batch.logit_rows
        if len(wanted) == 0:
            return stream.new_empty(0, self.spec.hidden_size)
        token_ids = batch.token_ids[wanted]
        if upper_rows is None:
            self.row_adapters.keep(wanted)
        return self.upper(stream[..., wanted, :], token_ids, upper_rows, arena, num_lower, soft=batch.upper_soft)

    def lower(
        self,
        token_ids: Tensor,
        rows: AttentionRows,
        arena: KVArena,
        num_layers: int,
        attend: Attend | None = None,
        *,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """The stream of all rows behind the first `num_layers` layers: [(streams,) rows, hidden].

        `embedded` is what `embed` makes of the rows; None: they are all text.

        Where the next layer owns keys, they are stored too: the least that may be done for a row. A caller that sees to
        attention itself passes `attend`; then nothing is planned, and the counts that `rows` has on the host are not
        looked at.
        """
        self.row_adapters.choose(rows)
        embedded = self.embed(token_ids) if embedded is None else embedded
        stream = embedded if self.streams is None else self.streams.expand(embedded)
        steps = self._kind_steps(rows, arena, attend or self.attention_of(rows, arena))
        indices = range(num_layers)
        if num_layers == self.spec.num_layers or not self.spec.layers[num_layers].owns_kv:
            return self._run_layers(stream, indices, token_ids, embedded, steps, arena).stream
        layer = self.layers[num_layers]
        assert isinstance(layer, DecoderLayer | AltUpLayer)
        residual = self._run_layers(stream, indices, token_ids, embedded, steps, arena, next_norm=layer.input_norm)
        layer.store(residual, steps[self.spec.layers[num_layers].attention], arena.layer(num_layers))
        return residual.stream

    def upper(
        self,
        stream: Tensor,
        token_ids: Tensor,
        rows: AttentionRows | None,
        arena: KVArena,
        first_layer: int,
        *,
        soft: SoftRows | None = None,
    ) -> Tensor:
        """The last hidden states of rows whose stream `lower` left behind the layers before `first_layer`.

        `rows` is None where no layer is left.
        """
        if rows is not None:
            self.row_adapters.choose(rows)
            layers = range(first_layer, self.spec.num_layers)
            embedded = self.embed(token_ids, soft)
            steps = self._kind_steps(rows, arena, self.attention_of(rows, arena))
            stream = self._run_layers(
                stream, layers, token_ids, embedded, steps, arena, stored_layer=first_layer
            ).stream
        merged = stream if self.streams is None else self.streams.merge(stream)
        normed: Tensor = self.norm(merged)
        return normed

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, vocab] in float32, of the tokens that are here where ranks share the vocabulary.

        Apart from `forward`, since a caller may want them a few rows at a time.
        """
        head = self.embedding if self.head is None else self.head
        return softcap(head(hidden), self.spec.logit_softcap, out=out)

    def attention_of(self, rows: AttentionRows, arena: KVArena) -> PlannedAttention:
        """How these rows attend, in the layers of each kind."""
        return PlannedAttention(
            {
                group.kind: self.placement.arithmetic.plan_attention(
                    rows if group.kind in self.spec.bidirectional_image_layers else rows.causal,
                    block_table,
                    heads_of(self.share.layers[group.stores[0].layer]),
                    window=group.window,
                    tokens_per_block=group.tokens_per_block,
                )
                for group, block_table in zip(arena.layout.groups, rows.block_tables, strict=True)
            }
        )

    def embed(self, token_ids: Tensor, soft: SoftRows | None = None) -> Tensor:
        """[rows, hidden]; those of media are as towers made them."""
        embedded = self.embedding.look_up(token_ids)
        return embedded if soft is None else embedded.index_copy(0, soft.places, soft.values)

    def _kind_steps(self, rows: AttentionRows, arena: KVArena, attend: Attend) -> dict[AttentionKind, KindStep]:
        """What the layers of each kind share: made once, used by every layer."""
        steps: dict[AttentionKind, KindStep] = {}
        for group, block_table in zip(arena.layout.groups, rows.block_tables, strict=True):
            table = self.rotary.table(group.kind)
            owner = self.share.layers[group.stores[0].layer]
            blocks, slots = row_places(rows, block_table, tokens_per_block=group.tokens_per_block)
            steps[group.kind] = KindStep(
                heads=heads_of(owner),
                attend=attend,
                cos_sin=table[rows.positions],
                cos_sin_table=table,
                write_blocks=blocks,
                write_slots=slots,
            )
        return steps

    def _run_layers(
        self,
        stream: Tensor,
        indices: range,
        token_ids: Tensor,
        embedded: Tensor,
        steps: Mapping[AttentionKind, KindStep],
        arena: KVArena,
        *,
        next_norm: RMSNorm | None = None,
        stored_layer: int | None = None,
    ) -> Residual:
        """`next_norm` is of whatever comes behind the last of them. The keys of `stored_layer` are stored already."""
        inputs = self._layer_inputs(token_ids, embedded, indices)
        residual = Residual(stream, None)
        for index, per_layer_input in zip(indices, inputs, strict=True):
            layer = self.spec.layers[index]
            source = index if layer.kv_from_layer is None else layer.kv_from_layer
            then = self.layers[index + 1].input_norm if index + 1 in indices else next_norm
            residual = self.layers[index](
                residual,
                per_layer_input,
                steps[layer.attention],
                arena.layer(source),
                self.layers[source].attention,
                then,
                is_stored=index == stored_layer,
            )
        return residual

    def _layer_inputs(self, token_ids: Tensor, embedded: Tensor, layers: range) -> tuple[Tensor | None, ...]:
        if self.per_layer_inputs is None:
            return (None,) * len(layers)
        inputs: Tensor = self.per_layer_inputs(token_ids, embedded, layers)
        return inputs.unbind(dim=1)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
