"""The sampling settings of one request, with vLLM's names, defaults and meanings.

Every `SamplingParams` object is valid in itself; what depends on the model (are these ids in the vocabulary?) is
checked by `check_against_vocabulary`. Knows no tensor, no tokenizer and no batch: `bad_words` are strings here, and
their token ids are added with `dataclasses.replace` where the tokenizer is known.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from facet.errors import RequestError
from facet.field_values import as_biases, as_float, as_int, as_strings, as_token_ids
from facet.neutral_params import require_neutral
from facet.repetition import LOOP_GUARD, LoopRule, RepetitionDetectionParams
from facet.structured_outputs import StructuredOutputsParams

# Below this a division by the temperature says nothing that argmax does not.
GREEDY_BELOW_TEMPERATURE = 1e-5
MAX_NUM_OUTPUTS = 16_384
DEFAULT_MAX_TOKENS = 16  # OpenAI's and vLLM's
WHOLE_VOCABULARY = -1  # as `logprobs` or `prompt_logprobs`
MODEL_CONTEXT = -1  # as `truncate_prompt_tokens`

_SEED_RANGE = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The settings of one request. Lists and mappings may be given; tuples are stored, so a value can be hashed.

    To change one, make another: `dataclasses.replace(params, temperature=0)`.
    """

    n: int = 1  # outputs per prompt
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # keep the smallest set of tokens holding this much probability
    top_k: int = 0  # keep this many tokens; 0 or -1: all
    min_p: float = 0.0  # keep tokens at least this probable relative to the best
    presence_penalty: float = 0.0  # subtracted once from every token already in the output
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the output
    repetition_penalty: float = 1.0  # shrinks the logits of tokens in the prompt or the output
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None  # stored as sorted pairs
    bad_words: Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()  # the sampler reads these, never the strings
    allowed_token_ids: Sequence[int] | None = None  # None: all of them
    min_tokens: int = 0  # no end-of-sequence and no stop id before this many tokens
    max_tokens: int | None = DEFAULT_MAX_TOKENS  # None: as many as the context holds
    ignore_eos: bool = False
    stop: Sequence[str] = ()  # one string is one stop string
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    seed: int | None = None  # None or -1: a fresh one for every request
    logprobs: int | None = None  # the k best and the sampled token; True: 1; -1: the whole vocabulary; None: none
    logprob_token_ids: Sequence[int] | None = None  # with the sampled token, these instead of the k best
    prompt_logprobs: int | None = None  # as `logprobs`, for every prompt token but the first
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last so many; -1: as many as the context holds
    thinking_token_budget: int | None = None  # tokens that thoughts may have in all; None: as many as they like
    loop_guard: bool = True  # end an output that repeats itself without end; not with ignore_eos
    repetition_detection: RepetitionDetectionParams | None = None  # a rule in place of the loop guard's
    structured_outputs: StructuredOutputsParams | None = None  # the engine is sent the grammar made of it instead
    # vLLM's, which may be given where they ask for nothing; stored as these values (neutral_params.py).
    extra_args: Any = None
    flat_logprobs: Any = None
    output_kind: Any = None
    skip_reading_prefix_cache: Any = None

    def __post_init__(self) -> None:
        _normalize_numbers(self)
        _normalize_collections(self)
        _check_ranges(self)
        _check_contradictions(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def logit_bias_items(self) -> tuple[tuple[int, float], ...]:
        """The biases as (token id, bias) pairs; empty when none were asked for."""
        if self.logit_bias is None:
            return ()
        return tuple(dict(self.logit_bias).items())

    @property
    def loop_rule(self) -> LoopRule | None:
        """What counts as a loop, which ends the output. None: nothing does."""
        if self.repetition_detection is not None:
            return self.repetition_detection.rule
        return LOOP_GUARD if self.loop_guard and not self.ignore_eos else None

    def seeded(self) -> "SamplingParams":
        """These settings with a seed: the given one, or a fresh random one.

        Drawn once at admission, it lets a preempted request resume its own stream of random numbers, and
        every tensor-parallel rank draw the same token.
        """
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))

    def clone(self) -> Self:
        """These settings: nothing can change them, so no copy is needed."""
        return self

    def for_output(self, index: int) -> "SamplingParams":
        """The settings of the index-th of `n` outputs: one output, and a seed of its own if one was given.

        Seeds count up from the given one, as vLLM's do, so output i of seed s repeats output 0 of seed s + i.
        """
        if not 0 <= index < self.n:
            raise IndexError(f"output {index} of a request that asks for {self.n}")
        if self.n == 1:
            return self
        return replace(self, n=1, seed=None if self.seed is None else _seed_of_output(self.seed, index))


def check_against_vocabulary(params: SamplingParams, *, vocab_size: int, eos_token_ids: Collection[int] = ()) -> None:
    """Refuse ids and counts the model does not have, and settings that leave it no token to choose."""
    for field, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("logprob_token_ids", params.logprob_token_ids or ()),
        ("logit_bias", [token_id for token_id, _ in params.logit_bias_items]),
        ("bad_words", [token_id for word in params.bad_words_token_ids for token_id in word]),
    ):
        outside = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
        _require(
            outside is None,
            field,
            f"{field} names token {outside}, but this model's ids run from 0 to {vocab_size - 1}. "
            "Remove it, or encode it with this model's tokenizer.",
        )
    for field, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        _require(
            count is None or count <= vocab_size,
            field,
            f"{field} asks for {count} tokens, but the vocabulary has {vocab_size}. "
            "Ask for fewer, or for -1, which means all of them.",
        )
    if params.allowed_token_ids is not None and params.min_tokens > 0:
        ending = {*params.stop_token_ids, *eos_token_ids}
        _require(
            not ending.issuperset(params.allowed_token_ids),
            "allowed_token_ids",
            f"allowed_token_ids holds only tokens that end the output, but min_tokens is {params.min_tokens} "
            "and forbids them at the start. Allow another token, or set min_tokens to 0.",
        )


def _normalize_numbers(params: SamplingParams) -> None:
    """Numbers of any numeric type become plain ints and floats; anything else is refused by field."""
    for field in (
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ):
        _store(params, field, as_float(getattr(params, field), field))
    for field in ("n", "top_k", "min_tokens"):
        _store(params, field, as_int(getattr(params, field), field))
    for field in (
        "max_tokens",
        "seed",
        "logprobs",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "thinking_token_budget",
    ):
        value = getattr(params, field)
        if value is True and field in ("logprobs", "prompt_logprobs"):
            value = 1  # as in vLLM
        _store(params, field, None if value is None else as_int(value, field))
    for field in ("extra_args", "flat_logprobs", "output_kind", "skip_reading_prefix_cache"):
        require_neutral(getattr(params, field), field)
        _store(params, field, None)
    for field in (
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "detokenize",
        "loop_guard",
    ):
        if not isinstance(getattr(params, field), bool):
            raise RequestError(f"{field} must be true or false, not {getattr(params, field)!r}.", field=field)
    for field, kind in (
        ("structured_outputs", StructuredOutputsParams),
        ("repetition_detection", RepetitionDetectionParams),
    ):
        value = getattr(params, field)
        if value is not None and not isinstance(value, kind):
            raise RequestError(f"{field} must be a {kind.__name__}, not {value!r}.", field=field)
    if params.top_k == -1:
        _store(params, "top_k", 0)
    if params.seed == -1:
        _store(params, "seed", None)


def _normalize_collections(params: SamplingParams) -> None:
    _store(params, "stop", as_strings(params.stop, "stop"))
    _store(params, "bad_words", as_strings(params.bad_words, "bad_words"))
    _store(params, "stop_token_ids", as_token_ids(params.stop_token_ids, "stop_token_ids"))
    if params.allowed_token_ids is not None:
        _store(params, "allowed_token_ids", as_token_ids(params.allowed_token_ids, "allowed_token_ids"))
    if params.logprob_token_ids is not None:
        _store(params, "logprob_token_ids", as_token_ids(params.logprob_token_ids, "logprob_token_ids") or None)
    if params.logprob_token_ids is not None and params.logprobs is None:
        _store(params, "logprobs", 0)
    _store(params, "bad_words_token_ids", _words(params.bad_words_token_ids, bool(params.bad_words)))
    if params.logit_bias is not None:
        for token_id in params.logit_bias if isinstance(params.logit_bias, Mapping) else ():
            if isinstance(token_id, bool) or not hasattr(token_id, "__index__"):
                raise RequestError(
                    f"logit_bias must map token ids to numbers, and a token id is an integer, not {token_id!r}.",
                    field="logit_bias",
                )
        _store(params, "logit_bias", as_biases(params.logit_bias))


def _words(given: Any, are_texts: bool) -> tuple[tuple[int, ...], ...]:
    """The token ids of each bad word; `are_texts`: they were made of `bad_words`."""
    name = "bad_words_token_ids"
    if given is not None and (isinstance(given, str | bytes) or not isinstance(given, Iterable)):
        raise RequestError(f"{name} must be a list, not {given!r}.", field=name)
    words = []
    for word in given or ():
        if isinstance(word, str | bytes) or not isinstance(word, Iterable):
            raise RequestError(f"{name} must hold a list of token ids for each word, not {word!r}.", field=name)
        words.append(as_token_ids(word, name))
    if not all(words):
        field = "bad_words" if are_texts else name
        raise RequestError(f"{field} holds a word of no tokens. Remove it.", field=field)
    return tuple(words)


def _check_ranges(params: SamplingParams) -> None:
    low, high = _SEED_RANGE
    seed, max_tokens, keep = params.seed, params.max_tokens, params.truncate_prompt_tokens
    budget = params.thinking_token_budget
    for holds, field, rule in (
        (1 <= params.n <= MAX_NUM_OUTPUTS, "n", f"must be from 1 to {MAX_NUM_OUTPUTS}"),
        (params.temperature >= 0, "temperature", "must be 0 (greedy) or more"),
        (0 < params.top_p <= 1, "top_p", "must be above 0 and at most 1; 1 switches it off"),
        (params.top_k >= 0, "top_k", "must be 1 or more; 0 or -1 switch it off"),
        (0 <= params.min_p <= 1, "min_p", "must be from 0 to 1; 0 switches it off"),
        (-2 <= params.presence_penalty <= 2, "presence_penalty", "must be from -2 to 2"),
        (-2 <= params.frequency_penalty <= 2, "frequency_penalty", "must be from -2 to 2"),
        (params.repetition_penalty > 0, "repetition_penalty", "must be above 0; 1 switches it off"),
        (params.min_tokens >= 0, "min_tokens", "must be 0 or more"),
        (max_tokens is None or max_tokens >= 1, "max_tokens", "must be 1 or more"),
        (seed is None or low <= seed <= high, "seed", f"must be from {low} to {high}"),
        (
            budget is None or budget >= 0,
            "thinking_token_budget",
            "must be 0 (no thought) or more; leave it out to set no limit",
        ),
        (
            keep is None or keep >= 1 or keep == MODEL_CONTEXT,
            "truncate_prompt_tokens",
            "must be 1 or more, or -1 for as many as the context holds",
        ),
    ):
        _require(holds, field, f"{field} is {getattr(params, field)}, but {rule}.")
    for field in ("logprobs", "prompt_logprobs"):
        count = getattr(params, field)
        _require(
            count is None or count >= WHOLE_VOCABULARY,
            field,
            f"{field} is {count}, but must be 0 or more, or -1 for the whole vocabulary.",
        )
    for field in ("stop", "bad_words"):
        _require("" not in getattr(params, field), field, f"{field} holds an empty string. Remove it.")
    _require(
        params.allowed_token_ids is None or len(params.allowed_token_ids) > 0,
        "allowed_token_ids",
        "allowed_token_ids is empty, so no token could be chosen. Name some, or leave it out to allow all.",
    )


def _check_contradictions(params: SamplingParams) -> None:
    """Each message names both settings and what to change; `field` is the first of the two."""
    min_tokens, max_tokens = params.min_tokens, params.max_tokens
    _require(
        max_tokens is None or min_tokens <= max_tokens,
        "min_tokens",
        f"min_tokens is {min_tokens}, but max_tokens is {max_tokens}. Lower min_tokens to at most "
        f"{max_tokens}, or raise max_tokens to at least {min_tokens}.",
    )
    _require(
        params.n == 1 or not params.is_greedy,
        "n",
        f"n is {params.n}, but temperature is {params.temperature}, which is greedy: all outputs would be "
        "the same. Set n to 1, or raise temperature.",
    )
    _require(
        params.detokenize or not params.stop,
        "stop",
        "stop holds strings, but detokenize is false, so there is no text to find them in. "
        "Set detokenize to true, or use stop_token_ids.",
    )
    if params.allowed_token_ids is not None:
        forbidden = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
        _require(
            not forbidden.issuperset(params.allowed_token_ids),
            "allowed_token_ids",
            "allowed_token_ids and bad_words together leave no token to choose: every allowed token is a "
            "bad word. Allow another token, or remove a bad word.",
        )


def _require(holds: bool, field: str, message: str) -> None:
    if not holds:
        raise RequestError(message, field=field)


def _store(params: SamplingParams, field: str, value: object) -> None:
    object.__setattr__(params, field, value)  # the value is frozen for everyone but its own construction


def _seed_of_output(seed: int, index: int) -> int:
    shifted = seed + index
    if seed < -1 <= shifted:
        shifted += 1  # -1 would mean "no seed"
    low, high = _SEED_RANGE
    return (shifted - low) % (high - low + 1) + low
