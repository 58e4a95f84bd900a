"""Sampling written a second time: one row, one token, plain Python, no shortcuts. What the tests compare with."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from facet.sampling_params import SamplingParams

Row = np.ndarray[tuple[int], np.dtype[np.float64]]
Ranks = np.ndarray[tuple[int], np.dtype[np.int64]]
MASK_32 = 2**32 - 1
MASK_64 = 2**64 - 1


def processed_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_token_ids: Collection[int] = (),
    grammar_allows: Collection[int] | None = None,
) -> Row:
    """Masks, biases and penalties, in the documented order."""
    row: Row = np.array(logits, dtype=np.float64)
    for token in range(len(row)):
        if grammar_allows is not None and token not in grammar_allows:
            row[token] = -math.inf
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            row[token] = -math.inf
    for word in params.bad_words_token_ids:
        *prefix, last = word
        if list(output[len(output) - len(prefix) :]) == prefix and len(output) >= len(prefix):
            row[last] = -math.inf
    if len(output) < params.min_tokens:
        for token in {*eos_token_ids, *params.stop_token_ids}:
            row[token] = -math.inf
    for token, bias in params.logit_bias_items:
        row[token] += bias
    for token in {*prompt, *output}:
        if row[token] > 0:
            row[token] /= params.repetition_penalty
        else:
            row[token] *= params.repetition_penalty
    for token in set(output):
        row[token] -= params.frequency_penalty * list(output).count(token)
        row[token] -= params.presence_penalty
    return row


def ranked(row: Sequence[float] | Row) -> list[int]:
    """Token ids, best first; the lower id first among equals."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def rounding_errors(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> Row:
    """How far float32 may end from `processed_logits`: 0 where nothing is added and nothing multiplied.

    At most a dozen roundings, each of 2**-24 of a number no larger than what is summed up here.
    """
    sizes: Row = np.abs(np.array(logits, dtype=np.float64))
    counted = set(output) if params.frequency_penalty or params.presence_penalty else set()
    repeated = {*prompt, *output} if params.repetition_penalty != 1 else set()
    for token, bias in params.logit_bias_items:
        sizes[token] += abs(bias)
    for token in repeated:
        sizes[token] *= max(params.repetition_penalty, 1 / params.repetition_penalty)
    for token in counted:
        sizes[token] += abs(params.frequency_penalty) * list(output).count(token) + abs(params.presence_penalty)
    changed = [*counted, *repeated, *(token for token, _ in params.logit_bias_items)]
    errors: Row = np.zeros(len(sizes))
    errors[changed] = 2**-20 * sizes[changed]
    return errors


@dataclass(frozen=True)
class Survivors:
    certain: set[int]
    possible: set[int]  # also those so close to a boundary, or to a token ranked before them, that rounding decides


def surviving_tokens(row: Row, params: SamplingParams, errors: Row | None = None, tolerance: float = 2e-5) -> Survivors:
    """What temperature, min_p, top_k and top_p leave.

    `errors` says how far each logit may be off; None: not at all. Logits that are exact and equal are ranked by id;
    where one is not exact and they are closer than their errors, either may come first.
    """
    if params.is_greedy:
        params = replace(params, temperature=1.0, min_p=0.0, top_k=1, top_p=1.0)
    order = [token for token in ranked(row) if row[token] > -math.inf]
    values, own_errors = row[order], (np.zeros(len(row)) if errors is None else errors)[order]
    weights = np.exp((values - values[0]) / params.temperature)
    slack = tolerance + (own_errors + own_errors[0]) / params.temperature  # relative to the weights
    top_k = params.top_k or len(row)
    ranks = np.arange(len(order))

    def keep(is_possible: bool) -> set[int]:
        sign = 1 if is_possible else -1
        reaches_min_p = weights * (1 + sign * slack) >= params.min_p
        mass_left = weights * (reaches_min_p & (ranks < top_k))
        num_ahead, mass_ahead = ranks.copy(), np.cumsum(weights) - weights
        for rank in ranks if own_errors.any() else ():
            rivals = _rivals(rank, values, own_errors)
            rivals = rivals[rivals < rank] if is_possible else rivals[rivals > rank]
            num_ahead[rank] -= sign * len(rivals)
            mass_ahead[rank] -= sign * weights[rivals].sum()
        is_kept = reaches_min_p & (num_ahead < top_k)
        if params.top_p < 1:
            is_kept &= mass_ahead < params.top_p * mass_left.sum() + sign * 2 * (mass_left * slack).sum()
        return {token for token, kept in zip(order, is_kept | (num_ahead == 0), strict=True) if kept}

    return Survivors(certain=keep(is_possible=False), possible=keep(is_possible=True))


def _rivals(rank: int, values: Row, errors: Row) -> Ranks:
    """The other ranks whose order relative to this one is a matter of rounding."""
    reach = errors + errors[rank]
    is_rival = (np.abs(values - values[rank]) <= reach) & (reach > 0)
    is_rival[rank] = False
    return np.flatnonzero(is_rival)


def mix_64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


def noise_keys(seed: int, position: int) -> tuple[int, int]:
    golden = 0x9E3779B97F4A7C15
    state = mix_64((seed + golden) & MASK_64)
    mixed = mix_64((state + position * golden) & MASK_64)
    return mixed & MASK_32, mixed >> 32


def noise_bits(keys: tuple[int, int], token: int) -> int:
    bits = (token * 0x9E3779B1) & MASK_32
    bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) & MASK_32
    bits = ((bits ^ (bits >> 15)) * 0x735A2D97) & MASK_32
    bits ^= bits >> 15
    bits ^= keys[0]
    bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) & MASK_32
    bits ^= keys[1]
    bits = ((bits ^ (bits >> 15)) * 0x735A2D97) & MASK_32
    return bits ^ (bits >> 15)


def exponential_noise(bits: int) -> float:
    signed = bits - 2**32 if bits >= 2**31 else bits
    return -math.log1p(-abs(signed + 0.5) / 2**31 * (1 - 2**-24))


def possible_choices(
    row: Row, params: SamplingParams, position: int, errors: Row | None = None, tolerance: float = 1e-4
) -> set[int]:
    """The token that wins the race; several only where rounding decides between them."""
    survivors = surviving_tokens(row, params, errors)
    if params.is_greedy or len(survivors.possible) == 1:
        return survivors.possible
    assert params.seed is not None
    keys = noise_keys(params.seed, position)
    best = ranked(row)[0]
    lowest: dict[int, float] = {}
    highest: dict[int, float] = {}
    for token in survivors.possible:
        noise = exponential_noise(noise_bits(keys, token))
        score = (row[token] - row[best]) / params.temperature - math.log(noise)
        # The uniform number behind the noise is rounded too, which counts where it is close to 1.
        slack = tolerance + 2**-22 * math.expm1(noise) / noise
        if errors is not None:
            slack += (errors[token] + errors[best]) / params.temperature
        lowest[token], highest[token] = score - slack, score + slack
    # Where only rounding says who survives, there may be nobody who certainly does.
    to_beat = max((lowest[token] for token in survivors.certain), default=-math.inf)
    return {token for token in survivors.possible if highest[token] >= to_beat}


def log_softmax(row: Sequence[float] | Row) -> Row:
    values: Row = np.array(row, dtype=np.float64)
    shifted: Row = values - values.max()
    shifted -= math.log(np.exp(shifted).sum())
    return shifted
