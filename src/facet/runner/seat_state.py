"""The runner's state of each seat between steps: the tokens it was given, and where its blocks are."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.kv_layout import KVLayout
from facet.media_span import MediaSpan, uncuttable
from facet.step import SCRATCH_BLOCK, Admission, NewBlocks, StepPlan
from facet.transfer import arrays_on_device

_ALIGNMENT = 128  # entries; kernels like tables that begin with a line of memory
_NO_TOKENS: NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduledTokens:
    """Token ids of a plan's rows; those that were sampled are only on the device, by seat."""

    token_ids: NDArray[np.int64]
    sampled_places: NDArray[np.int64]  # where in `token_ids` the id means nothing,
    sampled_seats: NDArray[np.int64]  # and the seat that has it


class SeatState:
    """Tokens on the host, block tables on the device. Tokens sampled since a request was admitted are not here: they
    stay on the device.

    The tables have one seat more than there are requests: the scratch seat, all of whose entries are the scratch block.
    """

    def __init__(
        self,
        layout: KVLayout,
        *,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device,
        has_adapters: bool = False,
    ) -> None:
        self._device = device
        self.num_seats = self.scratch_seat = max_num_seqs
        self._given: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * max_num_seqs
        self._num_given = np.zeros(max_num_seqs, np.int32)
        self.num_prompt = np.zeros(max_num_seqs, np.int32)
        self.uncuttable: dict[int, tuple[MediaSpan, ...]] = {}  # by seat, of prompts that have such media
        num_rows = max_num_seqs + 1
        # [seats] int32, on the device: the number of each one's adapter, 0: none. None: the model has no adapters.
        self.adapters = torch.zeros(num_rows, dtype=torch.int32, device=device) if has_adapters else None
        self._has_adapter = np.zeros(num_rows, np.bool_)
        widths = [-(-max_model_len // group.tokens_per_block) for group in layout.groups]
        # The tables lie in one piece, so that entries of all of them are written at once.
        *starts, size = itertools.accumulate(
            (-(-num_rows * width // _ALIGNMENT) * _ALIGNMENT for width in widths), initial=0
        )
        assert size <= np.iinfo(np.int32).max, f"block tables of {size} entries"
        self._entries = torch.full((size,), SCRATCH_BLOCK, dtype=torch.int32, device=device)
        self._starts, self._widths = np.array(starts, np.int32), np.array(widths, np.int32)
        self.block_tables = tuple(
            self._entries[start : start + num_rows * width].view(num_rows, width)
            for start, width in zip(starts, widths, strict=True)
        )

    def admit(self, admission: Admission) -> None:
        self._given[admission.seat] = np.array(admission.token_ids, np.int64)
        self._num_given[admission.seat] = len(admission.token_ids)
        self.num_prompt[admission.seat] = len(admission.request.prompt_token_ids)
        self.uncuttable.pop(admission.seat, None)
        if spans := uncuttable(admission.request.media):
            self.uncuttable[admission.seat] = spans
        if self.adapters is not None:
            placed = admission.request.placed_adapter
            self.adapters[admission.seat] = 0 if placed is None else placed.number
            self._has_adapter[admission.seat] = placed is not None
        for table, part in zip(self.block_tables, admission.tables, strict=True):
            table[admission.seat] = SCRATCH_BLOCK
            if len(part.block_ids):
                (block_ids,) = arrays_on_device((part.block_ids,), self._device)
                table[admission.seat, part.first : part.first + len(part.block_ids)] = block_ids

    def adapters_among(self, seats: NDArray[np.int32]) -> Tensor | None:
        """The adapters of all seats. None: none of these has one."""
        return self.adapters if self._has_adapter[seats].any() else None

    def append_blocks(self, new: NewBlocks) -> None:
        if len(new):
            places = self._starts[new.groups] + new.seats * self._widths[new.groups] + new.indices
            device_places, block_ids = arrays_on_device((places, new.block_ids), self._device)
            self._entries[device_places] = block_ids

    def given_tokens(self, seat: int, first: int, count: int) -> NDArray[np.int64]:
        """Tokens first .. first + count - 1 of the seat, as far as they were given rather than sampled."""
        return self._given[seat][first : first + count]

    def scheduled_tokens(self, plan: StepPlan) -> "ScheduledTokens":
        """Token ids of all rows. A token that was sampled after admission is scheduled alone, or with drafts behind."""
        is_sampled = plan.num_computed >= self._num_given[plan.seats]
        num_known = plan.num_scheduled - plan.num_drafts
        assert bool((num_known[is_sampled] == 1).all()), "sampled tokens are scheduled one at a time"
        known = [
            np.zeros(1, np.int64) if sampled else self.given_tokens(seat, first, count)
            for seat, first, count, sampled in zip(
                plan.seats.tolist(),
                plan.num_computed.tolist(),
                num_known.tolist(),
                is_sampled.tolist(),
                strict=True,
            )
        ]
        starts = np.cumsum(plan.num_scheduled) - plan.num_scheduled
        if len(plan.draft_token_ids):
            drafts = np.split(plan.draft_token_ids, np.cumsum(plan.num_drafts)[:-1])
            known = [part for pair in zip(known, drafts, strict=True) for part in pair]
        return ScheduledTokens(
            token_ids=np.concatenate(known),
            sampled_places=starts[is_sampled].astype(np.int64),
            sampled_seats=plan.seats[is_sampled].astype(np.int64),
        )

    def given_single_tokens(self, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Seats whose one scheduled token was given rather than sampled, and those tokens."""
        given = (plan.num_computed < self._num_given[plan.seats]).nonzero()[0]
        if not len(given):
            return _NO_TOKENS, _NO_TOKENS
        seats = plan.seats[given]
        tokens = [int(self._given[seat][first]) for seat, first in zip(seats, plan.num_computed[given], strict=True)]
        return seats.astype(np.int64), np.array(tokens, np.int64)
