"""The definition of choosing a token: rank all tokens, cut, race.

Slow and plain: it sorts the vocabulary. Weights are relative to the row's best token, and masses are integers, so
the cuts depend neither on the order of a sum nor on the batch.
"""

import math

import torch
from torch import Tensor

from facet.kernels.token_choice.noise import exponential, random_bits, scramble_token_ids
from facet.kernels.token_choice.outcome import ChoiceSettings, Outcome

# The best token's weight in fixed point. A vocabulary of 2**18 such weights still fits into 63 bits, and what
# rounds to zero is at most 2**-26 of the total.
FIXED_POINT = 2.0**44


def choose_tokens(
    logits: Tensor, settings: ChoiceSettings, noise_keys: Tensor | None, raw_max: Tensor | None = None
) -> Outcome:
    """One token for each row of logits [rows, vocab].

    A row's token is the one with the largest weight / exponential noise among those that min_p, top_k and top_p
    leave, in this order; equal logits are ranked by id. `noise_keys` [rows, 2] int32 may be None where every row's
    top_k is 1. `raw_max` [rows] float32 is the largest logit before masks, which may hide a NaN; None: the
    logits are not masked.
    """
    num_rows, vocab_size = logits.shape
    outcome = Outcome.empty(num_rows, logits.device)
    values = logits.float() + 0.0  # minus zero ties with zero
    row_max = values.amax(-1, keepdim=True)
    has_choice = (row_max.abs() < math.inf).squeeze(1)
    is_finite = has_choice if raw_max is None else raw_max.abs() < math.inf
    temperature, top_k, top_p, min_p = settings.by_row.unsqueeze(1).unbind(-1)

    ranked = values.sort(dim=-1, descending=True, stable=True)
    weights = ((ranked.values - row_max) / temperature.float()).exp()
    weights = weights.masked_fill(weights < min_p.float(), 0.0)
    weights = weights.masked_fill(torch.arange(vocab_size, device=logits.device) >= top_k, 0.0)
    masses = (weights * FIXED_POINT).to(torch.int64)
    reached = masses.cumsum(-1)
    is_outside = (top_p < 1) & (reached - masses >= top_p * reached[:, -1:])
    weights = weights.masked_fill(is_outside, 0.0)
    if noise_keys is not None:
        weights = weights / exponential(random_bits(noise_keys, scramble_token_ids(ranked.indices)))
    winners = ranked.indices.gather(1, weights.argmax(-1, keepdim=True)).squeeze(1)

    outcome.token_ids.copy_(winners * (has_choice & is_finite))
    outcome.has_choice.copy_(has_choice)
    outcome.is_finite.copy_(is_finite)
    return outcome
