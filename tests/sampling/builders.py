"""Small samplers and batches for the tests."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from facet.sampling import HostTokens, Sampler
from facet.sampling_params import SamplingParams

CPU = torch.device("cpu")


def make_sampler(vocab_size: int, num_seats: int = 8) -> Sampler:
    return Sampler(num_seats=num_seats, vocab_size=vocab_size, device=CPU)


def sample_once(
    logits: Tensor | Sequence[Sequence[float]], params: SamplingParams | Sequence[SamplingParams]
) -> HostTokens:
    """One step of new requests without prompts, one per row of logits."""
    logits = logits.clone() if isinstance(logits, Tensor) else torch.tensor(logits)
    all_params = [params] * len(logits) if isinstance(params, SamplingParams) else params
    sampler = make_sampler(logits.shape[1], num_seats=len(logits))
    for seat, seat_params in enumerate(all_params):
        sampler.add_request(seat, seat_params, [])
    return sampler.sample(logits, range(len(logits))).to_host()


def chi_square_limit(degrees: int) -> float:
    """The 0.9999 quantile, by Wilson and Hilferty's approximation."""
    return degrees * math.pow(1 - 2 / (9 * degrees) + 3.719 * math.sqrt(2 / (9 * degrees)), 3)


def chi_square(counts: Iterable[float], expected: Iterable[float]) -> float:
    return sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))


def quantized_logits(vocab_size: int) -> st.SearchStrategy[list[float]]:
    """Few distinct values, so that ties are the rule."""
    return st.lists(
        st.sampled_from([-9.0, -3.5, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 2.0, 4.0, 7.0]),
        min_size=vocab_size,
        max_size=vocab_size,
    )


@st.composite
def sampling_params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    """Any mix of features that a small vocabulary can show."""
    token_ids = st.integers(0, vocab_size - 1)
    settings: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.05])),
        "top_k": draw(st.sampled_from([0, 0, -1, 1, 3, 10, 100_000])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.1, 0.6])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 0.7, -1.5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.4, -0.3])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        "seed": draw(st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1)),
        "logprobs": draw(st.sampled_from([None, None, 0, 2, vocab_size, -1])),
        "max_tokens": None,
    }
    if draw(st.booleans()):
        settings["logit_bias"] = draw(
            st.dictionaries(token_ids, st.sampled_from([-100.0, -1.0, 2.0, 100.0]), max_size=4)
        )
    if draw(st.booleans()):
        words = st.lists(token_ids, min_size=1, max_size=3)
        settings["bad_words_token_ids"] = draw(st.lists(words, max_size=4))
    if draw(st.booleans()):
        settings["min_tokens"] = draw(st.integers(0, 4))
        settings["stop_token_ids"] = draw(st.lists(token_ids, max_size=2))
    if draw(st.booleans()):
        forbidden = {word[0] for word in settings.get("bad_words_token_ids", []) if len(word) == 1}
        allowed = draw(st.sets(token_ids, min_size=1).filter(lambda ids: not ids <= forbidden))
        settings["allowed_token_ids"] = sorted(allowed)
    return SamplingParams(**settings)
