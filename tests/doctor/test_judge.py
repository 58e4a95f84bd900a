"""What is rounding, what is a tie, what is corruption: by numbers alone."""

import math
from dataclasses import replace

import pytest

from facet.doctor.judge import LIMITS, Limits, Outcome, ScoredToken, Transcript, judge

STRICT = Limits(logprob=0.01, tie=0.02)


def scored(token_id: int, *best: float) -> ScoredToken:
    """Tokens 0, 1, 2 ... with these log-probabilities."""
    return ScoredToken(token_id, best[token_id], tuple(enumerate(best)))


ALONE = Transcript(tokens=(scored(0, -0.5, -1.2, -3.0), scored(0, -1.0, -1.01, -4.0)), prompt_logprobs=(-2.0, -5.0))


def test_the_same_transcript() -> None:
    verdict = judge(ALONE, ALONE, STRICT)
    assert (verdict.outcome, verdict.deviation) == (Outcome.SAME, 0.0)


def test_rounding_is_the_same() -> None:
    other = replace(ALONE, tokens=(scored(0, -0.504, -1.2, -3.0), ALONE.tokens[1]))
    verdict = judge(ALONE, other, STRICT)
    assert verdict.outcome is Outcome.SAME
    assert verdict.deviation == pytest.approx(0.004)


@pytest.mark.parametrize("logprob", [-0.52, -9.0, math.nan, -math.inf, math.inf])
def test_another_logprob_of_the_same_token_is_corruption(logprob: float) -> None:
    other = replace(ALONE, tokens=(ScoredToken(0, logprob, ((0, logprob),)), ALONE.tokens[1]))
    verdict = judge(ALONE, other, STRICT)
    assert verdict.outcome is Outcome.CORRUPT
    assert verdict.deviation > STRICT.logprob
    assert "token 0" in verdict.why


def test_a_tie_ends_the_comparison() -> None:
    """The second token's two likeliest are 0.01 apart; what follows a tie belongs to another text."""
    longer = replace(ALONE, tokens=(*ALONE.tokens, scored(0, -0.1, -3.0, -4.0)))
    other = replace(ALONE, tokens=(ALONE.tokens[0], scored(1, -1.004, -1.002, -4.0), scored(2, -9.0, -9.0, -0.1)))
    assert judge(longer, other, STRICT).outcome is Outcome.TIE


def test_a_clear_choice_that_changed_is_corruption() -> None:
    """Log-probabilities agree, yet another token was said: the token is somebody else's."""
    other = replace(ALONE, tokens=(scored(1, -0.5, -1.2, -3.0), ALONE.tokens[1]))
    verdict = judge(ALONE, other, STRICT)
    assert verdict.outcome is Outcome.CORRUPT
    assert verdict.deviation == pytest.approx(0.7)


def test_a_tie_whose_rivals_moved_is_corruption() -> None:
    other = replace(ALONE, tokens=(ALONE.tokens[0], scored(1, -1.5, -1.4, -4.0)))
    assert judge(ALONE, other, STRICT).outcome is Outcome.CORRUPT


def test_a_token_outside_the_best() -> None:
    """It is at most as likely as the last of them: within reach only if that one is."""
    far, near = ScoredToken(9, -1.0, ()), ScoredToken(9, -1.0, ())
    assert judge(ALONE, replace(ALONE, tokens=(ALONE.tokens[0], far)), STRICT).outcome is Outcome.CORRUPT
    flat = replace(ALONE, tokens=(ALONE.tokens[0], scored(0, -1.0, -1.01, -1.015)))
    assert judge(flat, replace(flat, tokens=(flat.tokens[0], near)), STRICT).outcome is Outcome.TIE


def test_large_logprobs_are_compared_relatively() -> None:
    alone = Transcript(prompt_logprobs=(-100.0,))
    assert judge(alone, Transcript(prompt_logprobs=(-100.9,)), STRICT).outcome is Outcome.SAME
    assert judge(alone, Transcript(prompt_logprobs=(-101.1,)), STRICT).outcome is Outcome.CORRUPT


@pytest.mark.parametrize(
    "other",
    [
        replace(ALONE, error="the logits held NaN"),
        replace(ALONE, tokens=ALONE.tokens[:1]),
        replace(ALONE, prompt_logprobs=(-2.0,)),
        replace(ALONE, prompt_logprobs=(-2.0, -5.1)),
        replace(ALONE, prompt_logprobs=(math.nan, -5.0)),
    ],
)
def test_what_is_corruption_in_any_case(other: Transcript) -> None:
    assert judge(ALONE, other, STRICT).outcome is Outcome.CORRUPT


def test_nan_alone_is_corruption_too() -> None:
    """A transcript held against itself: what ran alone must be sound as well."""
    broken = replace(ALONE, prompt_logprobs=(math.nan, -5.0))
    assert judge(broken, broken, STRICT).outcome is Outcome.CORRUPT
    assert judge(replace(ALONE, error="x"), replace(ALONE, error="x"), STRICT).outcome is Outcome.CORRUPT


def test_coarser_types_are_given_more() -> None:
    assert LIMITS["float32"].logprob < LIMITS["float16"].logprob < LIMITS["bfloat16"].logprob
    assert all(limits.tie == 2 * limits.logprob for limits in LIMITS.values())
