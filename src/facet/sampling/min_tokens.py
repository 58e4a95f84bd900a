"""min_tokens: no end-of-sequence and no stop id until the output has that many tokens.

How many tokens there are is counted on the host, as in `seeds.py`; a row that has enough costs nothing more.
"""

import numpy as np
from torch import Tensor

from facet.sampling.adjustments import FORBIDDEN, RowAdjustments, add_to_logits
from facet.sampling.batch_rows import Arrival, BatchRows


class MinTokens:
    def __init__(self) -> None:
        self._num_missing: dict[int, int] = {}
        self._adjustments = RowAdjustments()

    def add_request(self, arrival: Arrival) -> None:
        num_missing = arrival.params.min_tokens - len(arrival.output_token_ids)
        ending = sorted({*arrival.eos_token_ids, *arrival.params.stop_token_ids})
        if num_missing > 0 and ending:
            self._num_missing[arrival.row] = num_missing
            amounts = np.full(len(ending), FORBIDDEN, dtype=np.float32)
            self._adjustments.set(arrival.row, np.array(ending, dtype=np.int64), amounts)

    def remove_request(self, row: int) -> None:
        self._num_missing.pop(row, None)
        self._adjustments.drop(row)

    def is_active(self, batch: BatchRows) -> bool:
        return self._adjustments.has_any(batch)

    def apply(self, logits: Tensor, batch: BatchRows) -> None:
        add_to_logits(logits, self._adjustments.gather(batch))

    def accept(self, batch: BatchRows, token_ids: Tensor) -> None:
        for row in self._num_missing.keys() & set(batch.rows):
            self._num_missing[row] -= 1
            if self._num_missing[row] == 0:
                self.remove_request(row)
