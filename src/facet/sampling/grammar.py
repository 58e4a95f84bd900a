"""Applies a grammar to a step: a packed bitmask of the tokens it allows next, for the rows that have one.

The mask comes from outside for every step (a grammar advances with the tokens it sees); nothing is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.sampling.bitmask import apply_bitmask, num_words
from facet.transfer import array_on_device, indices_on_device


@dataclass(frozen=True, slots=True)
class GrammarMask:
    bitmask: Tensor  # [len(places), ceil(vocab / 32)] int32 on the logits' device, laid out as in `bitmask.py`
    places: Sequence[int]  # the rows of this step's logits they belong to

    def apply(self, logits: Tensor) -> None:
        expected = (len(self.places), num_words(logits.shape[-1]))
        assert self.bitmask.shape == expected, (
            f"a grammar bitmask of shape {tuple(self.bitmask.shape)} for {len(self.places)} rows of "
            f"{logits.shape[-1]} tokens; {expected} was expected"
        )
        apply_bitmask(logits, self.bitmask, indices_on_device(self.places, logits.device))


@dataclass(frozen=True, slots=True)
class HostMask:
    """A step's mask as the host makes it, when the device may be one token ahead.

    Text that is free until some token comes is not waited for: where that token turns out to have been the last one
    sampled, which only the device knows, the mask of what follows it applies, and otherwise none.
    """

    bitmask: NDArray[np.int32]  # as in `GrammarMask`
    places: Sequence[int]
    only_after: Sequence[int | None]  # by place: the token; None: the mask applies whatever came last

    def on_device(self, device: torch.device, last_token_ids: Tensor) -> GrammarMask:
        """`last_token_ids` [rows of the step's logits]: what each sampled last."""
        bitmask = array_on_device(self.bitmask, device)
        if any(token is not None for token in self.only_after):
            after = indices_on_device([-1 if token is None else token for token in self.only_after], device)
            applies = (after < 0) | (last_token_ids[indices_on_device(self.places, device)] == after)
            bitmask = torch.where(applies.unsqueeze(-1), bitmask, -1)
        return GrammarMask(bitmask, self.places)
