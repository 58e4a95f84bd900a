"""The log-probabilities of one token and of the best tokens at its position, as plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token itself comes first, then the best `num_top` in order.

    The token itself may come again among the best; `ranks[0]` is its rank, the others count up from 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
