"""What a request may ask for, and what it hears when it may not."""

import copy
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.errors import RequestError
from facet.neutral_params import RequestOutputKind
from facet.sampling_params import SamplingParams, check_against_vocabulary
from facet.structured_outputs import StructuredOutputsParams


def make(settings: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**settings)


def test_defaults_are_those_vllm_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.skip_special_tokens, params.spaces_between_special_tokens, params.detokenize) == (True,) * 3
    assert (params.ignore_eos, params.include_stop_str_in_output) == (False, False)


def test_lists_and_mappings_are_stored_hashable() -> None:
    params = SamplingParams(
        stop=["a", "b"],
        stop_token_ids=[3, 1],
        logit_bias={9: 1, 2: -0.5},
        bad_words=["x"],
        bad_words_token_ids=[[1, 2], [3]],
        allowed_token_ids=range(3),
    )
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (3, 1)
    assert params.logit_bias == params.logit_bias_items == ((2, -0.5), (9, 1.0))
    assert params.bad_words_token_ids == ((1, 2), (3,))
    assert params.allowed_token_ids == (0, 1, 2)
    assert hash(params) == hash(replace(params))
    assert params == replace(params)


def test_a_message_carries_them_unchanged() -> None:
    params = SamplingParams(
        stop=["a"], logit_bias={9: 1, 2: -0.5}, bad_words_token_ids=[[1, 2]], allowed_token_ids=[3], seed=-5
    )
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert received == params
    assert hash(received) == hash(params)


def test_a_clone_is_the_same_and_a_change_makes_another() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], structured_outputs=StructuredOutputsParams(regex="a"))
    assert params.clone() == copy.deepcopy(params) == params
    with pytest.raises(FrozenInstanceError):
        params.temperature = 0.0  # type: ignore[misc]
    assert replace(params, temperature=0.0).stop == ("a",)


@pytest.mark.parametrize(
    "settings",
    [
        {"extra_args": None, "flat_logprobs": False, "skip_reading_prefix_cache": None},
        {"extra_args": {}, "skip_reading_prefix_cache": False},
        *({"output_kind": kind} for kind in RequestOutputKind),
    ],
    ids=str,
)
def test_settings_of_vllm_that_ask_for_nothing(settings: dict[str, Any]) -> None:
    assert make(settings) == make({})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"extra_args": {"a": 1}}, "extra_args is {'a': 1}, which is not supported. There are no plug-ins that would"),
        ({"flat_logprobs": True}, "flat_logprobs is True, which is not supported. Log-probabilities are a list with"),
        ({"output_kind": "delta"}, "output_kind is 'delta', which is not supported. It must be a RequestOutputKind."),
        (
            {"skip_reading_prefix_cache": True},
            "skip_reading_prefix_cache is True, which is not supported. Give the pro",
        ),
    ],
)
def test_settings_of_vllm_that_ask_for_something(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        make(settings)
    assert str(caught.value).startswith(words)
    assert caught.value.field == next(iter(settings))


def test_true_is_one_log_probability() -> None:
    params = make({"logprobs": True, "prompt_logprobs": True})
    assert (params.logprobs, params.prompt_logprobs) == (1, 1)
    assert type(params.logprobs) is int
    with pytest.raises(RequestError, match="logprobs must be an integer, not False"):
        make({"logprobs": False})


def test_one_stop_string_is_not_a_list_of_letters() -> None:
    assert SamplingParams(stop="end").stop == ("end",)


def test_the_spellings_of_off() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(seed=-1) == SamplingParams(seed=None)
    assert make({"stop": None, "stop_token_ids": None, "bad_words": None, "bad_words_token_ids": None}) == make({})
    assert SamplingParams(logit_bias={}) == SamplingParams()


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    params = make(
        {"temperature": np.float32(0.5), "top_k": np.int64(3), "stop_token_ids": np.array([1, 2]), "top_p": 1}
    )
    assert (type(params.temperature), type(params.top_k), type(params.top_p)) == (float, int, float)
    assert params.stop_token_ids == (1, 2)


def test_greedy_is_a_temperature_too_small_to_divide_by() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "1", None, True, [1.0]])
def test_what_is_no_finite_number_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        make({field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "n is 0, but must be from 1 to 16384"),
        ({"n": -1}, "n is -1"),
        ({"n": 16385}, "n is 16385"),
        ({"n": 1.5}, "n must be an integer, not 1.5"),
        ({"n": True}, "n must be an integer, not True"),
        ({"temperature": -0.1}, "temperature is -0.1, but must be 0"),
        ({"top_p": 0.0}, "top_p is 0.0, but must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_k": -2}, "top_k is -2"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1, but must be from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, but must be above 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"max_tokens": 0}, "max_tokens is 0, but must be 1 or more"),
        ({"max_tokens": "9"}, "max_tokens must be an integer"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"logprobs": -2}, "logprobs is -2"),
        ({"prompt_logprobs": -2}, "prompt_logprobs is -2"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -2"),
        ({"stop": [""]}, "stop holds an empty string"),
        ({"stop": [1]}, "stop must hold strings, not 1"),
        ({"stop": 7}, "stop must be a list, not 7"),
        ({"stop_token_ids": [-1]}, "stop_token_ids names token -1"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be an integer"),
        ({"stop_token_ids": "12"}, "stop_token_ids must be a list, not '12'"),
        ({"bad_words": [""]}, "bad_words holds an empty string"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"logit_bias": {1: math.nan}}, "logit_bias is nan"),
        ({"logit_bias": {1: math.inf}}, "logit_bias is inf"),
        ({"logit_bias": {-1: 0.5}}, "logit_bias names token -1"),
        ({"logit_bias": {"a": 0.5}}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": [1, 2]}, "logit_bias must map token ids to numbers"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false"),
        ({"detokenize": None}, "detokenize must be true or false"),
    ],
)
def test_what_is_out_of_range_is_refused_by_field(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        make(settings)
    assert words in str(caught.value)
    assert caught.value.field == next(iter(settings))


def test_a_bad_word_of_no_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens") as caught:
        SamplingParams(bad_words_token_ids=[[1], []])
    assert caught.value.field == "bad_words_token_ids"


@pytest.mark.parametrize(
    ("settings", "field", "other"),
    [
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "max_tokens"),
        ({"n": 2, "temperature": 0}, "n", "temperature"),
        ({"stop": ["x"], "detokenize": False}, "stop", "detokenize"),
        (
            {"allowed_token_ids": [1, 2], "bad_words_token_ids": [[2], [1]]},
            "allowed_token_ids",
            "bad_words",
        ),
    ],
)
def test_a_contradiction_names_both_sides(settings: dict[str, Any], field: str, other: str) -> None:
    with pytest.raises(RequestError) as caught:
        make(settings)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert other in str(caught.value)


def test_a_contradiction_says_what_to_change() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(min_tokens=9, max_tokens=5)
    assert str(caught.value) == (
        "min_tokens is 9, but max_tokens is 5. Lower min_tokens to at most 5, or raise max_tokens to at least 9."
    )


def test_near_contradictions_are_fine() -> None:
    SamplingParams(min_tokens=5, max_tokens=5)
    SamplingParams(min_tokens=5, max_tokens=None)
    SamplingParams(n=2, temperature=1e-5)
    SamplingParams(allowed_token_ids=[1, 2], bad_words_token_ids=[[2], [1, 1]])
    SamplingParams(detokenize=False, stop_token_ids=[1])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"stop_token_ids": [0, 100]}, "stop_token_ids"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids"),
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"bad_words_token_ids": [[1, 100]]}, "bad_words"),
        ({"logprobs": 101}, "logprobs"),
        ({"prompt_logprobs": 101}, "prompt_logprobs"),
    ],
)
def test_ids_and_counts_outside_the_vocabulary_are_refused(settings: dict[str, Any], field: str) -> None:
    params = make(settings)
    check_against_vocabulary(params, vocab_size=101)
    with pytest.raises(RequestError, match="100") as caught:
        check_against_vocabulary(params, vocab_size=100)
    assert caught.value.field == field


def test_allowing_only_the_end_before_the_end_is_allowed_is_a_contradiction() -> None:
    params = SamplingParams(allowed_token_ids=[1, 7], stop_token_ids=[7], min_tokens=1)
    check_against_vocabulary(params, vocab_size=10)
    with pytest.raises(RequestError, match="min_tokens is 1") as caught:
        check_against_vocabulary(params, vocab_size=10, eos_token_ids=[1])
    assert caught.value.field == "allowed_token_ids"


class TestSeveralOutputs:
    def test_each_output_has_a_seed_of_its_own(self) -> None:
        outputs = [SamplingParams(n=3, seed=40).for_output(index) for index in range(3)]
        assert [output.seed for output in outputs] == [40, 41, 42]
        assert {output.n for output in outputs} == {1}

    def test_without_a_seed_there_is_none(self) -> None:
        assert SamplingParams(n=2).for_output(1).seed is None

    @given(st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1))
    def test_no_output_loses_its_seed(self, seed: int) -> None:
        """-1 means "no seed", and the largest seed has no successor."""
        params = SamplingParams(n=5, seed=seed)
        seeds = [params.for_output(index).seed for index in range(5)]
        assert None not in seeds
        assert len(set(seeds)) == 5
        assert seeds[0] == seed

    @pytest.mark.parametrize("seed", [-2, -5, 2**63 - 1])
    def test_no_output_loses_its_seed_at_the_edges(self, seed: int) -> None:
        seeds = [SamplingParams(n=5, seed=seed).for_output(index).seed for index in range(5)]
        assert None not in seeds
        assert len(set(seeds)) == 5

    def test_one_output_is_the_request_itself(self) -> None:
        params = SamplingParams(seed=3)
        assert params.for_output(0) is params

    @pytest.mark.parametrize("index", [-1, 2])
    def test_there_are_no_others(self, index: int) -> None:
        with pytest.raises(IndexError):
            SamplingParams(n=2).for_output(index)


def test_a_seed_is_drawn_once_and_kept() -> None:
    first, second = SamplingParams().seeded(), SamplingParams().seeded()
    assert first.seed is not None
    assert first.seed != second.seed
    assert first.seeded() is first
