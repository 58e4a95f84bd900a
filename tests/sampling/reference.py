"""Sampling written a second time: one row, one token, plain Python, no shortcuts. What the tests compare with."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from facet.sampling_params import SamplingParams

Row = np.ndarray[tuple[int], np.dtype[np.float64]]
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


@dataclass(frozen=True)
class Survivors:
    certain: set[int]
    possible: set[int]  # also those so close to a boundary that rounding decides


def surviving_tokens(row: Row, params: SamplingParams, tolerance: float = 1e-5) -> Survivors:
    """What temperature, min_p, top_k and top_p leave."""
    order = [token for token in ranked(row) if row[token] > -math.inf]
    if params.is_greedy:
        return Survivors({order[0]}, {order[0]})
    weights = {token: math.exp((row[token] - row[order[0]]) / params.temperature) for token in order}
    slack = tolerance / min(params.temperature, 1.0)
    ranks = {token: rank for rank, token in enumerate(order)}
    top_k = params.top_k or len(row)

    def keep(min_p: float, top_p: float) -> set[int]:
        kept = [token for token in order if weights[token] >= min_p and ranks[token] < top_k]
        total = sum(weights[token] for token in kept)
        result: set[int] = set()
        mass = 0.0
        for token in kept:
            if mass < top_p * total or not result:
                result.add(token)
            mass += weights[token]
        return result

    if params.top_p == 1:  # nothing is cut off, so nothing is close to being
        looser, tighter = 1.0, 1.0
    else:
        looser, tighter = params.top_p + slack, params.top_p - slack
    return Survivors(
        certain=keep(params.min_p * (1 + slack), tighter), possible=keep(params.min_p * (1 - slack), looser)
    )


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


def possible_choices(row: Row, params: SamplingParams, position: int, tolerance: float = 1e-4) -> set[int]:
    """The token that wins the race; several only where rounding decides between them."""
    survivors = surviving_tokens(row, params)
    if len(survivors.possible) == 1:
        return survivors.possible
    assert params.seed is not None
    keys = noise_keys(params.seed, position)
    best = max(row)
    scores = {
        token: (row[token] - best) / params.temperature - math.log(exponential_noise(noise_bits(keys, token)))
        for token in survivors.possible
    }
    winning = max(scores[token] for token in survivors.certain)
    slack = tolerance / min(params.temperature, 1.0)
    return {token for token in scores if scores[token] >= winning - slack}


def log_softmax(row: Sequence[float] | Row) -> Row:
    values: Row = np.array(row, dtype=np.float64)
    shifted: Row = values - values.max()
    shifted -= math.log(np.exp(shifted).sum())
    return shifted
