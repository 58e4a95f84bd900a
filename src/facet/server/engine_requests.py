"""Prompts and settings -> what the engine is sent. Encoding happens here, in threads; see `app.py` for the pool."""

import time
from collections.abc import Sequence
from dataclasses import replace

from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.request import Request
from facet.sampling_params import MODEL_CONTEXT, SamplingParams
from facet.server.served_model import ServedModel
from facet.tokens.bad_words import bad_words_token_ids


def encode_prompt(
    prompt: str | Sequence[int], model: ServedModel, sampling: SamplingParams, *, add_special_tokens: bool
) -> list[int]:
    """Token ids of one prompt, cut from the left where the request asks for that."""
    limit = sampling.truncate_prompt_tokens
    if limit == MODEL_CONTEXT:
        limit = max(1, model.max_model_len - (sampling.max_tokens or 1))
    if not isinstance(prompt, str):
        token_ids = list(prompt)
        return token_ids if limit is None else token_ids[-limit:]
    tokenizer = model.require_tokenizer()
    return tokenizer.encode(prompt, add_special_tokens=add_special_tokens, max_tokens=limit, keep="end")


def spell_bad_words(sampling: SamplingParams, model: ServedModel) -> SamplingParams:
    if not sampling.bad_words:
        return sampling
    return replace(sampling, bad_words_token_ids=bad_words_token_ids(sampling.bad_words, model.require_tokenizer()))


def make_requests(
    request_ids: Sequence[str],
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    model: ServedModel,
    *,
    priority: int,
    cache_salt: str | None,
    grammar: GrammarSpec | None = None,
    all_with_prompt_logprobs: bool = False,
) -> list[Request]:
    """A request for each of the n answers to each prompt, those of one prompt together. Ids in the same order."""
    arrival_time = time.monotonic()
    requests: list[Request] = []
    for prompt in prompts:
        token_ids = tuple(prompt)
        for index in range(sampling.n):
            settings = sampling.for_output(index)
            if index and not all_with_prompt_logprobs:
                settings = replace(settings, prompt_logprobs=None)  # the first answer's are everybody's
            requests.append(
                Request(
                    request_id=request_ids[len(requests)],
                    prompt_token_ids=token_ids,
                    sampling=settings,
                    eos_token_ids=model.eos_token_ids,
                    priority=priority,
                    arrival_time=arrival_time,
                    cache_salt=cache_salt,
                    grammar=grammar,
                )
            )
    return requests


def check_count(num_prompts: int, n: int, limit: int) -> None:
    """More answers than the server may ever have in hand would be told to come back for ever."""
    if num_prompts * n > limit:
        raise RequestError(
            f"{num_prompts} prompts with n = {n} are {num_prompts * n} answers, but this server has at most {limit} "
            "in hand. Ask for fewer at a time.",
            field="n" if n > 1 else "prompt",
        )


def fit_max_tokens(sampling: SamplingParams, num_prompt_tokens: int, model: ServedModel) -> SamplingParams:
    """A default must not refuse what its user never asked for: it ends where the context does."""
    if sampling.max_tokens is None:
        return sampling
    room = max(1, model.max_model_len - num_prompt_tokens)
    return replace(sampling, max_tokens=min(sampling.max_tokens, room), min_tokens=min(sampling.min_tokens, room))
