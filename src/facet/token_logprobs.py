"""The log-probabilities of one token and of the best tokens at its position, as plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token itself comes first, then the best in order, or those that the request names in its order.

    The token itself may come again among them. Ranks count from 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
