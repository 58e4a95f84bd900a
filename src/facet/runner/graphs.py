"""Captures forward passes with one row per sequence as CUDA graphs, once per size, and replays them.

A pass has two halves, captured separately because they are also used separately:

    lower   last token ids of the seats ─► all their keys and values stored, and the stream on which the last depend
    upper   that stream ─► logits

A step in which every request computes one token replays both. A step with longer runs of rows computes its lower half
by `pieces.py` or kernel by kernel, and then has one row per sequence left: it replays only the upper half.

Rows behind drafts are rows like others: each attends, as a sequence of its own, to all up to its position, where the
rows before it have just stored their keys. Where rows are many, those of a request read these keys together.

Both halves read and write buffers at fixed addresses. A step of a size between two captured ones is padded with rows at
position 0 of the scratch seat, whose blocks belong to no request.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.progress import Progress
from facet.runner.recording import Recorder, Replayable


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBuffers:
    """What graphs read and write, as long as the largest of them needs."""

    last_token_ids: Tensor  # [seats + drafts] int64: the newest token of every request; the runner's own
    block_tables: tuple[Tensor, ...]
    scratch_seat: int
    seat_adapters: Tensor | None  # None: the model has no adapters
    may_share_seats: bool  # a request may have several rows: drafts
    rows: Tensor  # [3, size] int32: positions, seats, and where each token is among the last ones
    token_ids: Tensor  # [size] int64
    stream: Tensor  # [(streams,) size, hidden]: between the halves
    hidden: Tensor  # [size, hidden]: after them
    logits: Tensor  # [size, vocab] float32

    @classmethod
    def make(
        cls,
        model: Gemma,
        size: int,
        *,
        last_token_ids: Tensor,
        block_tables: tuple[Tensor, ...],
        scratch_seat: int,
        seat_adapters: Tensor | None,
        may_share_seats: bool,
    ) -> "DecodeBuffers":
        spec, device, dtype = model.spec, model.placement.device, model.placement.dtype
        streams = () if spec.altup is None else (spec.altup.num_streams,)
        # Whole lines of memory, so that each of them begins aligned.
        rows = torch.zeros(3, -(-size // 16) * 16, dtype=torch.int32, device=device)
        rows[1:] = scratch_seat
        return cls(
            last_token_ids=last_token_ids,
            block_tables=block_tables,
            scratch_seat=scratch_seat,
            seat_adapters=seat_adapters,
            may_share_seats=may_share_seats,
            rows=rows,
            token_ids=torch.zeros(size, dtype=torch.int64, device=device),
            stream=torch.zeros(*streams, size, spec.hidden_size, dtype=dtype, device=device),
            hidden=torch.zeros(size, spec.hidden_size, dtype=dtype, device=device),
            logits=torch.zeros(size, model.share.vocab_size, dtype=torch.float32, device=device),
        )

    def attention_rows(self, size: int, max_model_len: int, *, has_adapters: bool) -> AttentionRows:
        return AttentionRows(
            positions=self.rows[0, :size],
            seats=self.rows[1, :size],
            block_tables=self.block_tables,
            host_query_lens=(1,) * size,
            host_context_lens=(max_model_len,) * size,
            host_prompt_lens=(0,) * size,
            may_share_seats=self.may_share_seats,
            has_drafts=self.may_share_seats,
            seat_adapters=self.seat_adapters if has_adapters else None,
        )


class DecodeGraphs:
    """Captured halves by size, and by whether some row has an adapter. `capture` must come before anything is
    replayed."""

    def __init__(
        self, model: Gemma, arena: KVArena, buffers: DecodeBuffers, sizes: Sequence[int], *, num_lower_layers: int
    ) -> None:
        self._model = model
        self._arena = arena
        self._buffers = buffers
        self.sizes = tuple(sorted(sizes))
        self._num_lower_layers = num_lower_layers
        self._lower: dict[tuple[int, bool], Replayable] = {}
        self._upper: dict[tuple[int, bool], Replayable] = {}

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    @torch.inference_mode()
    def capture(self, recorder: Recorder, progress: Progress) -> None:
        """Record every size, the largest first: the others find its memory large enough."""
        kinds = (False,) if self._buffers.seat_adapters is None else (True, False)
        with progress.task("Capturing graphs", len(self.sizes)) as advance:
            for size in reversed(self.sizes):
                for kind in kinds:
                    self._lower[size, kind] = recorder.record(partial(self._run_lower, size, kind))
                    self._upper[size, kind] = recorder.record(partial(self._run_upper, size, kind))
                advance(1)

    def decode(
        self,
        positions: NDArray[np.int32],
        seats: NDArray[np.int32],
        sources: NDArray[np.int32],
        num_more: Tensor | None = None,
        *,
        has_adapters: bool = False,
    ) -> Tensor:
        """Logits [rows, vocab] of tokens among the last ones; they hold until the next replay.

        `num_more` [rows] int32: by how much positions are further on, as only the device knows. `has_adapters`: a seat
        has one.
        """
        self._stage(positions, seats, sources)
        if num_more is not None:
            self._buffers.rows[0, : len(positions)] += num_more
        captured = self._size_for(len(positions)), has_adapters
        self._lower[captured].replay()
        self._upper[captured].replay()
        return self._buffers.logits[: len(positions)]

    def finish(
        self,
        stream: Tensor,
        token_ids: Tensor,
        wanted: Tensor,
        positions: NDArray[np.int32],
        seats: NDArray[np.int32],
        *,
        has_adapters: bool = False,
    ) -> Tensor:
        """Logits of rows `wanted` of a stream that has passed the lower layers."""
        count = len(positions)
        self._stage(positions, seats, seats)
        self._buffers.stream[..., :count, :] = stream[..., wanted, :]
        self._buffers.token_ids[:count] = token_ids[wanted]
        self._upper[self._size_for(count), has_adapters].replay()
        return self._buffers.logits[:count]

    def hidden(self, count: int) -> Tensor:
        """The last hidden states of the rows just computed."""
        return self._buffers.hidden[:count]

    def _stage(self, positions: NDArray[np.int32], seats: NDArray[np.int32], sources: NDArray[np.int32]) -> None:
        target = self._buffers.rows
        rows = torch.zeros(target.shape, dtype=torch.int32, pin_memory=target.is_cuda)
        count = len(positions)
        array = rows.numpy()
        array[0, :count] = positions
        array[1, :count] = seats
        array[2, :count] = sources
        array[1:, count:] = self._buffers.scratch_seat
        target.copy_(rows, non_blocking=True)

    def _size_for(self, count: int) -> int:
        return self.sizes[bisect_left(self.sizes, count)]

    def _run_lower(self, size: int, has_adapters: bool) -> None:
        buffers = self._buffers
        rows = buffers.attention_rows(size, self._model.num_positions, has_adapters=has_adapters)
        torch.index_select(buffers.last_token_ids, 0, buffers.rows[2, :size], out=buffers.token_ids[:size])
        stream = self._model.lower(buffers.token_ids[:size], rows, self._arena, self._num_lower_layers)
        buffers.stream[..., :size, :] = stream

    def _run_upper(self, size: int, has_adapters: bool) -> None:
        buffers = self._buffers
        rows = buffers.attention_rows(size, self._model.num_positions, has_adapters=has_adapters)
        stream, token_ids = buffers.stream[..., :size, :], buffers.token_ids[:size]
        hidden = self._model.upper(stream, token_ids, rows, self._arena, self._num_lower_layers)
        buffers.hidden[:size] = hidden
        self._model.logits(hidden, out=buffers.logits[:size])


def default_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The sizes to capture: close together where a step is short, further apart where a few rows more cost little."""
    sizes = [
        1,
        2,
        4,
        8,
        12,
        *range(16, 64, 8),
        *range(64, 128, 16),
        *range(128, 256, 32),
        *range(256, max_num_seqs, 64),
    ]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)
