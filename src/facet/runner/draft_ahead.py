"""Lets a drafter guess, on the device, how the sequences of a step go on behind the tokens just sampled.

Where graphs are captured, one graph per number of sequences makes one draft of each: it reads the newest tokens and the
states they were chosen from, and leaves in their place the tokens drafted and the states made along with them. Replayed
again, it makes the next drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.layers.kv_arena import KVArena
from facet.model.draft_model import DraftModel
from facet.progress import Progress
from facet.runner.measuring import seconds_of
from facet.runner.recording import Recorder, Replayable
from facet.runner.seat_state import SeatState
from facet.step import StepPlan
from facet.transfer import arrays_on_device, to_host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftBuffers:
    """What graphs read and write, as long as the largest of them needs."""

    rows: Tensor  # [2, size] int32: positions and seats
    token_ids: Tensor  # [size] int64
    hidden: Tensor  # [size, backbone]

    @classmethod
    def make(cls, model: DraftModel, size: int, scratch_seat: int) -> "DraftBuffers":
        device, dtype = model.placement.device, model.placement.dtype
        # Whole lines of memory, so that each of them begins aligned.
        rows = torch.zeros(2, -(-size // 16) * 16, dtype=torch.int32, device=device)
        rows[1] = scratch_seat
        return cls(
            rows=rows,
            token_ids=torch.zeros(size, dtype=torch.int64, device=device),
            hidden=torch.zeros(size, model.spec.backbone_size, dtype=dtype, device=device),
        )


@dataclass(frozen=True, slots=True)
class DraftsInFlight:
    """Drafts on their way to the host, which meanwhile looks at the tokens that they follow."""

    token_ids: Tensor  # [seats, drafts]
    arrived: torch.Event | None

    @classmethod
    def start_copy(cls, drafts: Tensor) -> "DraftsInFlight":
        if drafts.device.type != "cuda":
            return cls(drafts, None)
        copy, arrived = to_host(drafts), torch.Event("cuda")
        arrived.record(torch.cuda.current_stream(drafts.device))
        return cls(copy, arrived)

    def wait(self) -> tuple[tuple[int, ...], ...]:
        """Waits for the drafts of each seat, and returns them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return tuple(map(tuple, self.token_ids.tolist()))


class DraftAhead:
    """`capture` must come before the first draft, where there are sizes."""

    def __init__(self, model: DraftModel, arena: KVArena, seats: SeatState, *, sizes: Sequence[int] = ()) -> None:
        """`sizes`: numbers of sequences to capture; for more than the largest, drafts are made kernel by kernel."""
        self._model = model
        self._arena = arena
        self._block_tables = seats.block_tables
        self._scratch_seat = seats.scratch_seat
        self._device = model.placement.device
        self._sizes = tuple(sorted(sizes))
        self._buffers = DraftBuffers.make(model, self._sizes[-1], seats.scratch_seat) if sizes else None
        self._graphs: dict[int, Replayable] = {}

    @torch.inference_mode()
    def capture(self, recorder: Recorder, progress: Progress) -> None:
        """Record every size, the largest first: the others find its memory large enough."""
        if not self._sizes:
            return
        with progress.task("Capturing the drafter", len(self._sizes)) as advance:
            for size in reversed(self._sizes):
                self._graphs[size] = recorder.record(partial(self._run, size))
                advance(1)

    @torch.inference_mode()
    def seconds_of_drafts(self) -> dict[int, float]:
        """How long one draft of so many sequences takes, by the sizes captured, or of one sequence."""
        if self._graphs:
            return {size: seconds_of(self._graphs[size].replay, self._device) for size in self._sizes}
        buffers = DraftBuffers.make(self._model, 1, self._scratch_seat)
        rows = self._attention_rows(buffers.rows[0, :1], buffers.rows[1, :1], (1,))
        work = partial(self._model.draft, buffers.token_ids, buffers.hidden, rows, self._arena, 1)
        return {1: seconds_of(work, self._device)}

    def draft(self, plan: StepPlan, token_ids: Tensor, hidden: Tensor, num_more: Tensor | None) -> Tensor:
        """[seats, drafts] of the plan's entries that sample: behind the token each got last.

        `hidden` are the states those tokens were chosen from. `num_more` int32: by how much each is further on than the
        plan could know, because of drafts that were right; None: by nothing.
        """
        seats = plan.seats[plan.samples]
        first = (plan.num_computed + plan.num_scheduled - plan.num_drafts - 1)[plan.samples]
        size = next((size for size in self._sizes if size >= len(seats)), None)
        if size is not None:
            return self._replay(size, first, seats, num_more, token_ids, hidden, plan.num_to_draft)
        positions, device_seats = arrays_on_device((first, seats), self._device)
        # The longest there can be: the rest is not looked at.
        longest = first + plan.num_drafts[plan.samples] + 1
        context_lens = tuple((longest + plan.num_undecided if plan.is_ahead else longest).tolist())
        rows = self._attention_rows(positions if num_more is None else positions + num_more, device_seats, context_lens)
        return self._model.draft(token_ids, hidden, rows, self._arena, plan.num_to_draft)

    def _replay(
        self,
        size: int,
        positions: NDArray[np.int32],
        seats: NDArray[np.int32],
        num_more: Tensor | None,
        token_ids: Tensor,
        hidden: Tensor,
        num_drafts: int,
    ) -> Tensor:
        buffers, count = self._buffers, len(seats)
        assert buffers is not None, "graphs have buffers"
        staged = torch.zeros(buffers.rows.shape, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        array = staged.numpy()
        array[0, :count] = positions
        array[1, :count] = seats
        array[1, count:] = self._scratch_seat
        buffers.rows.copy_(staged, non_blocking=True)
        if num_more is not None:
            buffers.rows[0, :count] += num_more
        buffers.token_ids[:count] = token_ids
        buffers.hidden[:count] = hidden
        drafts = torch.empty(count, num_drafts, dtype=torch.int64, device=self._device)
        for place in range(num_drafts):
            self._graphs[size].replay()
            drafts[:, place] = buffers.token_ids[:count]
        return drafts

    def _run(self, size: int) -> None:
        buffers = self._buffers
        assert buffers is not None, "graphs have buffers"
        longest = (self._model.num_positions,) * size
        rows = self._attention_rows(buffers.rows[0, :size], buffers.rows[1, :size], longest)
        steps = self._model.plan(rows, self._arena)
        token_ids, hidden = self._model.draft_one(buffers.token_ids[:size], buffers.hidden[:size], steps, self._arena)
        buffers.token_ids[:size] = token_ids
        buffers.hidden[:size] = hidden

    def _attention_rows(self, positions: Tensor, seats: Tensor, context_lens: tuple[int, ...]) -> AttentionRows:
        return AttentionRows(
            positions=positions,
            seats=seats,
            block_tables=self._block_tables,
            host_query_lens=(1,) * len(context_lens),
            host_context_lens=context_lens,
            host_prompt_lens=(0,) * len(context_lens),
        )


def draft_sizes(graph_sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """The sizes among those captured for steps that as many sequences as may run can have."""
    return tuple(size for size in sorted(graph_sizes) if size <= max_num_seqs)
