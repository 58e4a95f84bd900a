"""Captures the lower layers between attentions, for steps so short that launching takes longer than computing.

How rows attend differs from step to step, so attention is launched each time. All that lies between two attentions
depends on the number of rows alone: it is captured, once per size, and a layer is one replay and its attention.

    graph   token ids ─► embedding                                 rows of media are written over it
    piece   embedding ─► ..., queries of layer 0                   keys and values go to their pages
    pause   queries ─► attended                                    of the rows that are there
    piece   attended ─► rest of layer 0, ..., queries of layer 1
    ...
    piece   attended ─► the stream behind the last layer, and keys and values of one more

A step between two sizes is filled up with rows at position 0 of the scratch seat. They attend to nothing and get zeros
instead: what a row computes stays in that row, and zeros keep it finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows, SoftRows
from facet.layers.attention import LayerReads, PlannedAttention
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.model_spec import AttentionKind, ModelSpec
from facet.progress import Progress
from facet.runner.recording import Pause, Recorder, Replayable, ReplayableInPieces

# Up to a few hundred rows a step is bound by reading the weights, and rows that fill it up cost next to nothing; above,
# they cost their share.
SIZES = (16, 64, 128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
# Where rows are so many that a layer takes the device longer than the host takes to launch it, launches hide behind
# work, all but a few ms. On an H200 the host takes 20 ms for the 23 lower layers of E4B, whatever the step; the device
# takes 6.2 ms for 512 rows and 15.8 for 2048. Products of a value and a row that the device makes in the time of one
# layer's launches, a little less than that:
_PRODUCTS_MEANWHILE = 2.5e11
_LEAST_COVERED = 512


def sizes_up_to(max_num_rows: int, spec: ModelSpec) -> tuple[int, ...]:
    """The sizes that steps of up to so many rows gain from."""
    num_values = sum(layer.values_per_row(spec.hidden_size) for layer in spec.layers) / len(spec.layers)
    most = min(max_num_rows, max(_LEAST_COVERED, int(_PRODUCTS_MEANWHILE / num_values)))
    return tuple(size for size, smaller in zip(SIZES, (0, *SIZES), strict=False) if smaller < most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Where pieces and attention meet, in layers of one kind."""

    queries: Tensor  # [size, heads, head_dim]
    attended: Tensor  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceBuffers:
    """What pieces read and write, as long as the largest of them needs."""

    block_tables: tuple[Tensor, ...]
    scratch_seat: int
    seat_adapters: Tensor | None  # None: the model has no adapters
    token_ids: Tensor  # [size] int64
    embedded: Tensor  # [size, hidden]
    positions: Tensor  # [size] int32
    seats: Tensor  # [size] int32
    stations: dict[AttentionKind, Station]
    stream: Tensor  # [(streams,) size, hidden]: behind the last layer

    @classmethod
    def make(
        cls,
        model: Gemma,
        size: int,
        *,
        block_tables: tuple[Tensor, ...],
        scratch_seat: int,
        seat_adapters: Tensor | None = None,
    ) -> "PieceBuffers":
        spec, device, dtype = model.spec, model.placement.device, model.placement.dtype
        streams = () if spec.altup is None else (spec.altup.num_streams,)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            block_tables=block_tables,
            scratch_seat=scratch_seat,
            seat_adapters=seat_adapters,
            token_ids=torch.zeros(size, dtype=torch.int64, device=device),
            embedded=zeros(size, spec.hidden_size),
            positions=torch.zeros(size, dtype=torch.int32, device=device),
            seats=torch.full((size,), scratch_seat, dtype=torch.int32, device=device),
            stations={
                layer.attention: Station(
                    queries=zeros(size, layer.num_heads, layer.head_dim),
                    attended=zeros(size, layer.num_heads, layer.head_dim),
                )
                for layer in {layer.attention: layer for layer in model.share.layers}.values()
            },
            stream=zeros(*streams, size, spec.hidden_size),
        )

    def attention_rows(self, size: int, *, has_adapters: bool) -> AttentionRows:
        """The rows of attention. Which of them belong together is not known here: attention is planned elsewhere."""
        return AttentionRows(
            positions=self.positions[:size],
            seats=self.seats[:size],
            block_tables=self.block_tables,
            host_query_lens=(),
            host_context_lens=(),
            host_prompt_lens=(),
            seat_adapters=self.seat_adapters if has_adapters else None,
        )

    def fill(self, size: int, token_ids: Tensor, rows: AttentionRows) -> None:
        """The rows of a step, padded to `size` with rows of no request."""
        count = len(token_ids)
        for target, given, other in (
            (self.token_ids, token_ids, 0),
            (self.positions, rows.positions, 0),
            (self.seats, rows.seats, self.scratch_seat),
        ):
            target[:count] = given
            target[count:size] = other
        for station in self.stations.values():
            station.attended[count:size] = 0


class LowerPieces:
    """Captured passes by size, and by whether some row has an adapter. `capture` must come before anything is
    replayed."""

    def __init__(
        self, model: Gemma, arena: KVArena, buffers: PieceBuffers, sizes: Sequence[int], *, num_layers: int
    ) -> None:
        self._model = model
        self._arena = arena
        self._buffers = buffers
        self._sizes = sorted(sizes)
        self._num_layers = num_layers
        self._embeddings: dict[int, Replayable] = {}
        self._passes: dict[tuple[int, bool], ReplayableInPieces] = {}

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    @torch.inference_mode()
    def capture(self, recorder: Recorder, progress: Progress) -> None:
        """Record every size, the largest first: the others find its memory large enough."""
        kinds = (False,) if self._buffers.seat_adapters is None else (True, False)
        with progress.task("Capturing layers", len(self._sizes)) as advance:
            for size in reversed(self._sizes):
                self._embeddings[size] = recorder.record(partial(self._embed, size))
                for has_adapters in kinds:
                    self._passes[size, has_adapters] = recorder.record_pieces(partial(self._run, size, has_adapters))
                advance(1)

    def lower(self, token_ids: Tensor, rows: AttentionRows, soft: SoftRows | None = None) -> Tensor:
        """Like `Gemma.lower`; the result holds until the next call."""
        count = len(token_ids)
        size = next(size for size in self._sizes if size >= count)
        self._buffers.fill(size, token_ids, rows)
        self._embeddings[size].replay()
        if soft is not None:
            self._buffers.embedded.index_copy_(0, soft.places, soft.values)
        attention = self._model.attention_of(rows, self._arena)
        has_adapters = rows.seat_adapters is not None
        self._passes[size, has_adapters].replay(partial(self._attend, attention, count))
        return self._buffers.stream[..., :count, :]

    def _attend(self, attention: PlannedAttention, count: int, reads: LayerReads) -> None:
        station = self._buffers.stations[reads.kind]
        attention(station.queries[:count], reads, out=station.attended[:count])

    def _embed(self, size: int) -> None:
        self._buffers.embedded[:size] = self._model.embed(self._buffers.token_ids[:size])

    def _run(self, size: int, has_adapters: bool, pause: Pause) -> None:
        buffers = self._buffers

        def attend(queries: Tensor, reads: LayerReads) -> Tensor:
            station = buffers.stations[reads.kind]
            station.queries[:size] = queries
            pause(reads)
            return station.attended[:size]

        stream = self._model.lower(
            buffers.token_ids[:size],
            buffers.attention_rows(size, has_adapters=has_adapters),
            self._arena,
            self._num_layers,
            attend,
            embedded=buffers.embedded[:size],
        )
        buffers.stream[..., :size, :] = stream
