"""Lets a drafter guess, on the device, how the sequences of a step go on behind the tokens just sampled."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.layers.kv_arena import KVArena
from facet.model.draft_model import DraftModel
from facet.step import StepPlan
from facet.transfer import arrays_on_device


class DraftAhead:
    def __init__(self, model: DraftModel, arena: KVArena, block_tables: Sequence[Tensor], device: torch.device) -> None:
        self._model = model
        self._arena = arena
        self._block_tables = tuple(block_tables)
        self._device = device

    def draft(self, plan: StepPlan, token_ids: Tensor, hidden: Tensor, num_emitted: Tensor | None) -> Tensor:
        """[seats, drafts] of the plan's entries that sample: behind the token each got last.

        `hidden` are the states those tokens were chosen from. `num_emitted`: how many tokens each got, where drafts
        make that more than one; only the device knows.
        """
        first = (plan.num_computed + plan.num_scheduled - plan.num_drafts - 1)[plan.samples]
        positions, seats = arrays_on_device((first, plan.seats[plan.samples]), self._device)
        if num_emitted is not None:
            positions = positions + (num_emitted - 1).to(torch.int32)
        furthest: NDArray[np.int32] = first + plan.num_drafts[plan.samples]
        rows = AttentionRows(
            positions=positions,
            seats=seats,
            block_tables=self._block_tables,
            host_query_lens=(1,) * len(first),
            # The longest there can be: the rest is not looked at.
            host_context_lens=tuple((furthest + 1).tolist()),
        )
        return self._model.draft(token_ids, hidden, rows, self._arena, plan.num_to_draft)
