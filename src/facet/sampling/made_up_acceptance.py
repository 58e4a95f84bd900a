"""Makes drafts right as often as it is told, whatever they are: for measurements with random weights.

Random weights agree with no drafter. To time steps as they are with a real one, tokens behind drafts are replaced after
sampling: by the draft as long as it should be right, and by another token where the first should be wrong.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from facet.sampling.batch_seats import NO_DRAFT, Runs
from facet.transfer import array_on_device

_SEED = 0  # all ranks draw the same


class MadeUpAcceptance:
    def __init__(self, rates: Sequence[float]) -> None:
        """`rates`: how often the first draft of a run is right, the first two, and so on."""
        self._rates = np.array(rates)
        self._random = np.random.default_rng(_SEED)

    def apply(self, token_ids: Tensor, runs: Runs) -> None:
        """Changes sampled tokens [places] in place."""
        # Rates never rise: a draw below the n-th is below those before it too.
        num_right = (self._random.random((len(runs.seats), 1)) < self._rates).sum(1)
        offsets = np.array(runs.offsets)
        num_right_of_place = num_right[np.cumsum(offsets == 0) - 1]
        is_right, is_wrong = array_on_device(
            np.stack([offsets < num_right_of_place, offsets == num_right_of_place]), token_ids.device
        )
        has_draft = runs.following != NO_DRAFT
        other = torch.where(token_ids == runs.following, (runs.following == 0).to(token_ids.dtype), token_ids)
        changed = torch.where(is_wrong, other, token_ids)
        token_ids.copy_(torch.where(has_draft, torch.where(is_right, runs.following, changed), token_ids))
