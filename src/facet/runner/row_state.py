"""What the runner remembers of each row between steps: the tokens it was given and where its blocks are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from facet.kv_layout import KVLayout
from facet.step import SCRATCH_BLOCK, Admission, NewBlocks, StepPlan


class RowState:
    """Host memory by row. Tokens sampled since a request was admitted are not here: they stay on the device."""

    def __init__(self, layout: KVLayout, *, max_num_seqs: int, max_model_len: int) -> None:
        self._groups = layout.groups
        self._given: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * max_num_seqs
        self._num_given = np.zeros(max_num_seqs, np.int32)
        self._tables = tuple(
            np.full((max_num_seqs, -(-max_model_len // group.tokens_per_block)), SCRATCH_BLOCK, np.int32)
            for group in layout.groups
        )

    def admit(self, admission: Admission) -> None:
        self._given[admission.row] = np.array(admission.token_ids, np.int64)
        self._num_given[admission.row] = len(admission.token_ids)
        for table, part in zip(self._tables, admission.tables, strict=True):
            table[admission.row] = SCRATCH_BLOCK
            table[admission.row, part.first : part.first + len(part.block_ids)] = part.block_ids

    def append_blocks(self, new: NewBlocks) -> None:
        for group, table in enumerate(self._tables):
            chosen = new.groups == group
            table[new.rows[chosen], new.indices[chosen]] = new.block_ids[chosen]

    def block_tables(self, plan: StepPlan) -> tuple[NDArray[np.int32], ...]:
        """The tables of the plan's entries, as wide as the longest context needs."""
        longest = int((plan.num_computed + plan.num_scheduled).max())
        widths = (-(-longest // group.tokens_per_block) for group in self._groups)
        return tuple(table[plan.rows, :width] for table, width in zip(self._tables, widths, strict=True))

    def given_tokens(self, row: int, first: int, count: int) -> NDArray[np.int64]:
        """Tokens first .. first + count - 1 of the row, as far as they were given rather than sampled."""
        return self._given[row][first : first + count]

    def scheduled_tokens(self, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]:
        """Token ids of all scheduled rows, which of them must come from the device, and those rows' entries.

        A token that was sampled after admission is scheduled alone, and the id in its place here means nothing.
        """
        is_sampled = plan.num_computed >= self._num_given[plan.rows]
        assert bool((plan.num_scheduled[is_sampled] == 1).all()), "sampled tokens are scheduled one at a time"
        pieces = [
            np.zeros(1, np.int64) if sampled else self.given_tokens(row, first, count)
            for row, first, count, sampled in zip(
                plan.rows.tolist(),
                plan.num_computed.tolist(),
                plan.num_scheduled.tolist(),
                is_sampled.tolist(),
                strict=True,
            )
        ]
        from_device = np.repeat(is_sampled, plan.num_scheduled)
        return np.concatenate(pieces), from_device, plan.rows[is_sampled].tolist()
