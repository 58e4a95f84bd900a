"""A grammar's say in a step: a packed bitmask of the tokens it allows next, for the rows that have a grammar.

The mask comes from outside for every step (a grammar advances with the tokens it sees); nothing is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from facet.sampling.batch_rows import places_tensor
from facet.sampling.bitmask import apply_bitmask, num_words


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
        apply_bitmask(logits, self.bitmask, places_tensor(self.places, logits.device))
