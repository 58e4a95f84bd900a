"""Runs plans: updates its seats, builds the batch, calls the model and samples.

    launch             a plan ─► the forward pass is on its way
    sample             masks of grammars ─► so are the tokens, into the next step and to the host
    SampledStep.wait   the outcome

What goes in are frozen values that can be sent to another process (`engine/step_codec.py`), and nothing of them comes
back: a loop that drives several runners sends each the same. It may plan and launch the next step before it waits for
this one.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facet.forward_batch import ForwardBatch
from facet.layers.kv_arena import KVArena
from facet.media_span import MediaKind
from facet.model.draft_model import DraftModel
from facet.model.gemma import Gemma
from facet.progress import Advance, Progress, Silent
from facet.runner import warm_up
from facet.runner.batch import Chunks, make_batch, ranges
from facet.runner.compile_ahead import CompileAhead
from facet.runner.draft_ahead import DraftAhead, draft_sizes
from facet.runner.graphs import DecodeBuffers, DecodeGraphs
from facet.runner.measuring import free_gpu_bytes
from facet.runner.media_inputs import MediaInputs, StepMedia
from facet.runner.pieces import LowerPieces, PieceBuffers
from facet.runner.recording import Recorder, RunOnce, recording
from facet.runner.scratch_steps import ScratchSteps
from facet.runner.seat_state import SeatState
from facet.runner.step_sampling import ComputedRows, SampledStep, StepSampling
from facet.runner.tail import UnseenDrafts
from facet.step import STEP_SIZES, StepMasks, StepPlan
from facet.transfer import arrays_on_device, copy_to_device

NO_TOWERS: Mapping[MediaKind, nn.Module] = {}


@dataclass(slots=True)
class WorkCounters:
    """How much the runner has computed, ever."""

    num_steps: int = 0
    num_rows: int = 0  # through the lower layers
    num_upper_rows: int = 0  # through layers that fast prefill skips; equal to num_rows without it
    num_sampled_rows: int = 0
    # Steps by the smallest of `STEP_SIZES` that they fit into; the last count is of those that fit into none.
    num_steps_by_size: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))


class LaunchedStep(NamedTuple):
    """A step whose forward pass has been launched, and which has yet to be sampled."""

    plan: StepPlan
    computed: ComputedRows
    unseen: UnseenDrafts | None  # of a step that is ahead


class Runner:
    """Owns the seats, the sampler and the arena; does not know why these rows were chosen."""

    def __init__(
        self,
        model: Gemma,
        arena: KVArena,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int = 0,
        fast_prefill: bool = True,
        poison_freed_blocks: bool = False,
        graph_sizes: Sequence[int] = (),
        piece_sizes: Sequence[int] = (),
        towers: Mapping[MediaKind, nn.Module] = NO_TOWERS,
        num_encoder_rows: int = 0,
        has_drafts: bool = False,
        draft_model: DraftModel | None = None,
        made_up_rates: Sequence[float] = (),
    ) -> None:
        """`towers` take the kinds of media that the model has; of what they make, so many rows are kept.

        `max_num_batched_tokens`: rows of a step that there is memory for; only steps before the first request ask.
        `has_drafts`: plans may have some, of a `draft_model` or of the text. `made_up_rates`: at which they are
        accepted, for measurements; none: where they are right.
        """
        self.model = model
        self.arena = arena
        self.counters = WorkCounters()
        self._device = model.placement.device
        self._seats = SeatState(
            arena.layout,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            device=self._device,
            has_adapters=model.has_adapters,
        )
        self._sampling = StepSampling(
            model, self._seats, max_num_drafts=max(graph_sizes, default=0), made_up_rates=made_up_rates
        )
        if draft_model is not None:
            sizes = draft_sizes(graph_sizes, max_num_seqs)
            self._sampling.draft_ahead = DraftAhead(draft_model, arena, self._seats, sizes=sizes)
        self.media = MediaInputs(towers, model.spec.hidden_size, model.placement, num_encoder_rows=num_encoder_rows)
        self._fast_prefill = fast_prefill
        self._has_drafts = has_drafts or draft_model is not None
        # Past these, only rows with requested logits go on: nothing reads the last layer's output of the others.
        # With fast prefill they also skip layers that own no keys, whose output nothing reads either.
        self._num_lower_layers = model.spec.last_owning_layer if fast_prefill else model.spec.num_layers - 1
        self._poison_freed_blocks = poison_freed_blocks
        self._graphs = self._make_graphs(graph_sizes) if graph_sizes else None
        # Pieces are of use only where the other half is captured too.
        self._pieces = self._make_pieces(piece_sizes) if graph_sizes and piece_sizes else None
        self._scratch_steps = ScratchSteps(
            model,
            arena,
            self._seats,
            self._graphs,
            num_lower_layers=self._num_lower_layers,
            longest_context=min(max_model_len, model.num_positions),  # of which seats and model have places
            most_rows=max_num_batched_tokens,
            has_towers=bool(towers),
            has_drafts=self._has_drafts,
        )

    def _make_graphs(self, sizes: Sequence[int]) -> DecodeGraphs:
        buffers = DecodeBuffers.make(
            self.model,
            max(sizes),
            last_token_ids=self._sampling.last_token_ids,
            block_tables=self._seats.block_tables,
            scratch_seat=self._seats.scratch_seat,
            seat_adapters=self._seats.adapters,
            may_share_seats=self._has_drafts,
        )
        return DecodeGraphs(self.model, self.arena, buffers, sizes, num_lower_layers=self._num_lower_layers)

    def _make_pieces(self, sizes: Sequence[int]) -> LowerPieces:
        buffers = PieceBuffers.make(
            self.model,
            max(sizes),
            block_tables=self._seats.block_tables,
            scratch_seat=self._seats.scratch_seat,
            seat_adapters=self._seats.adapters,
        )
        return LowerPieces(self.model, self.arena, buffers, sizes, num_layers=self._num_lower_layers)

    @torch.inference_mode()
    def compile_kernels(self, progress: Progress, ahead: CompileAhead | None = None) -> None:
        """Compiles all kernels that steps may need, before there is one. Left out, each is compiled by the first step
        that needs it.

        `ahead` compiles them side by side.
        """
        if self._device.type != "cuda":
            return
        with progress.task("Compiling kernels", len(self._scratch_steps.all) + len(warm_up.SAMPLING)) as advance:
            if ahead is not None and ahead.is_needed:
                with ahead.compiled_ahead():
                    self.run_made_up_steps()
                    self._capture(RunOnce(), Silent())
            self.run_made_up_steps(advance)

    @torch.inference_mode()
    def run_made_up_steps(self, advance: Advance = lambda _: None) -> None:
        """Runs all steps that may need a kernel of their own, in blocks of no request."""
        self._scratch_steps.run(advance)
        for params in warm_up.SAMPLING:
            self._sampling.sample_nothing(params)
            advance(1)
        self._sampling.list_nothing(warm_up.NUM_LISTED)

    @torch.inference_mode()
    def capture_graphs(self, progress: Progress) -> int:
        """Captures graphs before the first step. Returns the bytes of a GPU that they then hold."""
        free = free_gpu_bytes(self._device)
        with recording(self._device) as recorder:
            self._capture(recorder, progress)
        return free - free_gpu_bytes(self._device)

    def _capture(self, recorder: Recorder, progress: Progress) -> None:
        for captured in (self._pieces, self._graphs, self._sampling.draft_ahead):
            if captured is not None:
                captured.capture(recorder, progress)
        if self._graphs is not None:
            self.media.capture_graphs(recorder, progress)

    @torch.inference_mode()
    def shift_of(self, adapter: int) -> float:
        """By how much an adapter changes the logits of a probe, as a share of their size. All ranks ask together."""
        plain, changed = (self._scratch_steps.logits_with(number) for number in (0, adapter))
        sums = torch.stack(((changed - plain).square().sum(), plain.square().sum()))
        group = self.model.placement.group
        difference, size = (sums if group is None else group.sum(sums)).sqrt().tolist()
        return float(difference / size)

    def time_steps(self) -> dict[int, float]:
        """Seconds that steps take by their number of rows, each of which is sampled."""
        return self._scratch_steps.time()

    def time_drafts(self) -> dict[int, float]:
        """Seconds that a drafter takes for one draft of every sequence, by their number; empty: there is none."""
        draft_ahead = self._sampling.draft_ahead
        return {} if draft_ahead is None else draft_ahead.seconds_of_drafts()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start the forward pass of a step. `sample` must come next, before another step is launched."""
        self._update_seats(plan)
        num_tokens, unseen = plan.num_tokens, None
        if plan.is_ahead:
            assert self._graphs is not None, "steps that are ahead are captured"
            unseen = self._sampling.unseen_drafts(plan)
            computed = self._replay(self._graphs, plan, unseen)
        else:
            computed = self._compute(plan, num_tokens)
        self._count(plan, num_tokens)
        return LaunchedStep(plan, computed, unseen)

    @torch.inference_mode()
    def sample(self, step: LaunchedStep, masks: StepMasks | None = None) -> SampledStep:
        """Start what is left of a step. The masks are what grammars allow, and may be made while the model computes."""
        return self._sampling.sample(step.plan, step.computed, masks, step.unseen)

    def _compute(self, plan: StepPlan, num_tokens: int) -> ComputedRows:
        graphs = self._graphs
        media = self.media.rows_of(plan)
        num_single = len(plan.seats) + len(plan.draft_token_ids)
        if (
            graphs is not None
            and media is None
            and num_tokens == num_single <= graphs.largest
            and not self._captured_otherwise(plan, plan.num_scheduled, num_answered=0)
        ):
            return self._replay(graphs, plan)
        num_wanted = int(plan.num_logit_rows.sum())
        if (
            graphs is None
            or num_wanted > graphs.largest
            or bool((plan.num_logit_rows > 1 + plan.num_drafts).any())  # every row's logits, of a prompt
            or (media is not None and _ends_in_media(plan, media))  # the upper half embeds tokens alone
            or self._captured_otherwise(plan, plan.num_logit_rows, num_answered=1)
        ):
            batch = self._batch(plan, media, skip_upper=True)
            return ComputedRows(self.model(batch, self.arena, self._num_lower_layers), None)
        batch = self._batch(plan, media, skip_upper=False)
        stream = self._lower(batch)
        if num_wanted == 0:
            return ComputedRows(stream.new_empty(0, self.model.spec.hidden_size), None)
        positions = ranges(plan.num_computed + plan.num_scheduled - plan.num_logit_rows, plan.num_logit_rows)
        seats = np.repeat(plan.seats, plan.num_logit_rows)
        has_adapters = batch.rows.seat_adapters is not None
        logits = graphs.finish(stream, batch.token_ids, batch.logit_rows, positions, seats, has_adapters=has_adapters)
        return ComputedRows(graphs.hidden(num_wanted), logits)

    def _captured_otherwise(self, plan: StepPlan, num_rows: NDArray[np.int32], *, num_answered: int) -> bool:
        """Whether one of the last so many rows of an entry may not attend as captured steps do, which is as answers do:
        where that matters, those of a prompt, but for its last `num_answered` tokens."""
        if not self.model.placement.attends_by_role:
            return False
        firsts = plan.num_computed + plan.num_scheduled - num_rows
        return bool(((num_rows > 0) & (firsts < self._seats.num_prompt[plan.seats] - num_answered)).any())

    def _lower(self, batch: ForwardBatch) -> Tensor:
        if self._pieces is not None and len(batch.token_ids) <= self._pieces.largest:
            return self._pieces.lower(batch.token_ids, batch.rows, batch.soft)
        embedded = self.model.embed(batch.token_ids, batch.soft)
        return self.model.lower(batch.token_ids, batch.rows, self.arena, self._num_lower_layers, embedded=embedded)

    def _replay(self, graphs: DecodeGraphs, plan: StepPlan, unseen: UnseenDrafts | None = None) -> ComputedRows:
        """Computes a step in which every entry computes one token, and drafts behind it."""
        given_seats, token_ids = self._seats.given_single_tokens(plan)
        if len(given_seats):
            device_seats, device_ids = arrays_on_device((given_seats, token_ids), self._device)
            self._sampling.last_token_ids[device_seats] = device_ids
        positions, seats, sources = plan.num_computed, plan.seats, plan.seats
        if plan.has_drafts:
            positions, seats = ranges(positions, plan.num_scheduled), np.repeat(seats, plan.num_scheduled)
            sources = self._place_drafts(plan, positions, seats, unseen)
        further_on = None if unseen is None else unseen.further_on
        logits = graphs.decode(
            positions,
            seats,
            sources,
            None if further_on is None else further_on.num_tokens,
            has_adapters=self._seats.adapters_among(plan.seats) is not None,
        )
        hidden = graphs.hidden(len(positions))
        if np.count_nonzero(plan.num_logit_rows) == len(plan.seats):
            return ComputedRows(hidden, logits)
        chosen = self._on_device(np.flatnonzero(np.repeat(plan.num_logit_rows > 0, plan.num_scheduled)))
        return ComputedRows(hidden[chosen], logits[chosen])

    def _place_drafts(
        self, plan: StepPlan, positions: NDArray[np.int32], seats: NDArray[np.int32], unseen: UnseenDrafts | None
    ) -> NDArray[np.int32]:
        """Puts drafts behind the last tokens of seats. Where each row finds its token there."""
        first, count = self._seats.num_seats + 1, len(seats) - len(plan.seats)
        target = self._sampling.last_token_ids[first : first + count]
        if unseen is None:
            copy_to_device(plan.draft_token_ids, target)
        else:
            target.copy_(unseen.token_ids)
        sources = seats.copy()
        is_draft = positions > np.repeat(plan.num_computed, plan.num_scheduled)
        sources[is_draft] = np.arange(first, first + count)
        return sources

    def _batch(self, plan: StepPlan, media: StepMedia | None, *, skip_upper: bool) -> ForwardBatch:
        chunks = Chunks(
            num_computed=plan.num_computed,
            num_scheduled=plan.num_scheduled,
            num_logit_rows=plan.num_logit_rows,
            num_prompt=self._seats.num_prompt[plan.seats],
            seats=plan.seats,
        )
        return make_batch(
            self._token_ids(plan, media),
            chunks,
            self._seats.block_tables,
            self._device,
            skip_upper=skip_upper,
            media=self._seats.uncuttable,
            soft=media,
            has_drafts=self._has_drafts,
            seat_adapters=self._seats.adapters_among(plan.seats),
        )

    def _update_seats(self, plan: StepPlan) -> None:
        """Updates the seats. The order matters; `step.py` gives it."""
        for seat in plan.released_seats:
            self._sampling.release(seat)
            self.media.release(seat)
        for admission in plan.admissions:
            self._seats.admit(admission)
            self._sampling.admit(admission)
            self.media.admit(admission)
        if self._poison_freed_blocks and len(plan.freed_blocks):
            self.arena.poison(self._on_device(plan.freed_blocks.astype(np.int64)))
        if len(plan.page_copies):
            sources, destinations = self._on_device(plan.page_copies.astype(np.int64)).unbind(dim=1)
            self.arena.copy_pages(sources, destinations)
        self._seats.append_blocks(plan.new_blocks)

    def _token_ids(self, plan: StepPlan, media: StepMedia | None) -> Tensor:
        scheduled = self._seats.scheduled_tokens(plan)
        if media is not None:
            scheduled.token_ids[media.places] = 0  # whose per-layer inputs rows of media get
        token_ids, places, seats = arrays_on_device(
            (scheduled.token_ids, scheduled.sampled_places, scheduled.sampled_seats), self._device
        )
        if len(places):
            token_ids[places] = self._sampling.last_token_ids[seats]
        return token_ids

    def _count(self, plan: StepPlan, num_tokens: int) -> None:
        self.counters.num_steps += 1
        self.counters.num_rows += num_tokens
        self.counters.num_upper_rows += int(plan.num_logit_rows.sum()) if self._fast_prefill else num_tokens
        self.counters.num_sampled_rows += int(np.count_nonzero(plan.samples))
        self.counters.num_steps_by_size[bisect_left(STEP_SIZES, num_tokens)] += 1

    def _on_device(self, array: NDArray[np.int64]) -> Tensor:
        (tensor,) = arrays_on_device((array,), self._device)
        return tensor


def _ends_in_media(plan: StepPlan, media: StepMedia) -> bool:
    """Whether a row that wants logits is media: that of a prompt with no text behind it."""
    ends = np.cumsum(plan.num_scheduled, dtype=np.int32)
    return bool(np.isin(ranges(ends - plan.num_logit_rows, plan.num_logit_rows), media.places).any())
