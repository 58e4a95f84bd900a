"""Runs steps of no request, in blocks that belong to none: to meet every kernel before requests do, and to be timed."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from facet.layers.kv_arena import KVArena
from facet.media_span import MediaSpan
from facet.model.gemma import Gemma
from facet.progress import Advance
from facet.runner import warm_up
from facet.runner.batch import NO_MEDIA, Chunks, make_batch
from facet.runner.graphs import DecodeGraphs
from facet.runner.measuring import NUM_TIMES, seconds_of
from facet.runner.seat_state import SeatState
from facet.runner.warm_up import WarmUpStep

# Rows of steps that are timed where none are captured, unless they take so many times as long as one row.
EAGER_SIZES_TIMED = (1, 2, 4, 8, 16, 32, 64)
LONGEST_TIMED = 4
PROBE_LENGTH = 8  # tokens by which an adapter is tried: no more than a block holds, of which there is one
SLOW_STEP = 0.1  # seconds of one row: steps of more rows are then timed once, so that starting does not take long


class ScratchSteps:
    def __init__(
        self,
        model: Gemma,
        arena: KVArena,
        seats: SeatState,
        graphs: DecodeGraphs | None,
        *,
        num_lower_layers: int,
        longest_context: int,
        most_rows: int,
        has_towers: bool,
        has_drafts: bool,
    ) -> None:
        self._model = model
        self._arena = arena
        self._seats = seats
        self._graphs = graphs
        self._num_lower_layers = num_lower_layers
        self._longest_context = longest_context
        self._most_rows = most_rows
        self._has_towers = has_towers
        self._has_drafts = has_drafts
        self._device = model.placement.device

    @property
    def all(self) -> tuple[WarmUpStep, ...]:
        """All steps that may need a kernel of their own."""
        alone = warm_up.ALONE if self._graphs is None else ()
        has_spans = self._has_towers and self._model.spec.bidirectional_image_layers
        is_long = self._most_rows >= sum(warm_up.LONG_PROMPT.query_lens)
        more = (*((warm_up.MEDIA,) if has_spans else ()), *((warm_up.LONG_PROMPT,) if is_long else ()))
        return (*warm_up.PASSES, *warm_up.BESIDE_PROMPTS, *alone, *more)

    @torch.inference_mode()
    def run(self, advance: Advance) -> None:
        """Runs all of the steps."""
        for step in self.all:
            # No step has logits of more rows than this; and where steps are captured, so are logits.
            has_logits = step in warm_up.PASSES or (
                self._graphs is None and len(step.query_lens) <= self._seats.num_seats
            )
            self._compute(step, num_logit_rows=int(has_logits))
            if self._seats.adapters is not None:
                self._compute(step, num_logit_rows=int(has_logits), adapters=self._seats.adapters)
            advance(1)

    @torch.inference_mode()
    def time(self) -> dict[int, float]:
        """Seconds that steps take by their number of rows, each of which wants logits.

        Captured steps are timed as such; a step between two sizes takes as long as the larger. Others are timed until
        they take several times as long as a single row.
        """
        if self._graphs is not None:
            graphs, seconds, smaller = self._graphs, dict[int, float](), 0
            for size in graphs.sizes:
                positions = np.zeros(size, np.int32)
                seats = np.full(size, self._seats.scratch_seat, np.int32)
                seconds[smaller + 1] = seconds[size] = seconds_of(
                    partial(graphs.decode, positions, seats, seats), self._device
                )
                smaller = size
            return seconds
        seconds, group = {}, self._model.placement.group
        for size in EAGER_SIZES_TIMED:
            compute = partial(self._compute, WarmUpStep((size,)), num_logit_rows=size)
            num_times = 1 if seconds.get(1, 0.0) > SLOW_STEP else NUM_TIMES
            seconds[size] = seconds_of(compute, self._device, num_times)
            if group is not None:  # all ranks stop at the same size
                seconds[size] = group.least(int(seconds[size] * 1e9), self._device) / 1e9
            if seconds[size] > LONGEST_TIMED * seconds[1]:
                break
        return seconds

    @torch.inference_mode()
    def logits_with(self, adapter: int) -> Tensor:
        """The logits of a few different tokens, with an adapter or, if that is 0, without."""
        assert self._seats.adapters is not None, "the model has adapters"
        scratch_seat = np.array([self._seats.scratch_seat], np.int32)
        count = np.array([min(PROBE_LENGTH, self._longest_context)], np.int32)
        chunks = Chunks.made_up(
            num_computed=np.zeros_like(count), num_scheduled=count, num_logit_rows=count, seats=scratch_seat
        )
        spread = self._model.spec.vocab_size // PROBE_LENGTH
        token_ids = torch.arange(int(count[0]), dtype=torch.int64, device=self._device) * spread + spread // 2
        self._seats.adapters[self._seats.scratch_seat] = adapter
        logits = self._model.logits(self._hidden(token_ids, chunks, self._seats.adapters))
        self._seats.adapters[self._seats.scratch_seat] = 0
        return logits

    def _compute(self, step: WarmUpStep, num_logit_rows: int, adapters: Tensor | None = None) -> None:
        """Computes a step of zeros, in contexts as long as may be."""
        lens = np.minimum(np.array(step.query_lens, np.int32), self._longest_context)
        num_computed = np.minimum(step.num_computed, self._longest_context - lens)
        chunks = Chunks.made_up(
            num_computed=num_computed,
            num_scheduled=lens,
            num_logit_rows=np.minimum(lens, num_logit_rows),
            seats=np.full_like(lens, self._seats.scratch_seat),
        )
        token_ids = torch.zeros(int(lens.sum()), dtype=torch.int64, device=self._device)
        media = MediaSpan(
            first=1, length=max(1, int(lens[0]) - 2), kind="image", content_key="", attends_both_ways=True
        )
        spans = {self._seats.scratch_seat: (media,)} if step.is_media else {}
        hidden = self._hidden(token_ids, chunks, adapters, spans)
        if num_logit_rows:
            self._model.logits(hidden)

    def _hidden(
        self,
        token_ids: Tensor,
        chunks: Chunks,
        adapters: Tensor | None,
        media: Mapping[int, Sequence[MediaSpan]] = NO_MEDIA,
    ) -> Tensor:
        batch = make_batch(
            token_ids,
            chunks,
            self._seats.block_tables,
            self._device,
            skip_upper=True,
            media=media,
            has_drafts=self._has_drafts,
            seat_adapters=adapters,
        )
        hidden: Tensor = self._model(batch, self._arena, self._num_lower_layers)
        return hidden
