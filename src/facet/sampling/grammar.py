"""Applies a grammar to a step: a packed bitmask of the tokens it allows next, for the rows that have one.

The mask comes from outside for every step (a grammar advances with the tokens it sees); nothing is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from facet.sampling.bitmask import apply_bitmask, num_words
from facet.sampling.vocabulary import Vocabulary
from facet.step import StepMasks
from facet.transfer import array_on_device, indices_on_device


@dataclass(frozen=True, slots=True)
class GrammarMask:
    bitmask: Tensor  # [len(places), ceil(vocab / 32)] int32 on the logits' device, laid out as in `bitmask.py`
    places: Sequence[int]  # the rows of this step's logits they belong to

    def apply(self, logits: Tensor, vocabulary: Vocabulary) -> None:
        expected = (len(self.places), num_words(vocabulary.size))
        assert self.bitmask.shape == expected, (
            f"a grammar bitmask of shape {tuple(self.bitmask.shape)} for {len(self.places)} rows of "
            f"{vocabulary.size} tokens; {expected} was expected"
        )
        is_every_row = tuple(self.places) == tuple(range(len(logits)))
        places = None if is_every_row else indices_on_device(self.places, logits.device)
        apply_bitmask(logits, self.bitmask, places, vocabulary.held)


def grammar_mask(masks: StepMasks, last_token_ids: Tensor, seats: Tensor) -> GrammarMask:
    """A step's masks on the device. `last_token_ids`: what each seat sampled last; `seats` [rows of the logits]."""
    device = last_token_ids.device
    bitmask = array_on_device(masks.bitmask, device)
    if any(token is not None for token in masks.only_after):
        after = indices_on_device([-1 if token is None else token for token in masks.only_after], device)
        applies = (after < 0) | (last_token_ids[seats[indices_on_device(masks.places, device)]] == after)
        bitmask = torch.where(applies.unsqueeze(-1), bitmask, -1)
    return GrammarMask(bitmask, masks.places)
