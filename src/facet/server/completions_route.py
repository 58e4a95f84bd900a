"""/v1/completions: continues one or several prompts, given as text or token ids."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from facet.errors import RequestError
from facet.prompts import AskedModel, PreparedQuestion, TextQuestion, prepare
from facet.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from facet.server.body import BodyDecoder
from facet.server.completion_answers import CompletionExchange
from facet.server.echo import NO_ECHO, Echo, echo_of_text, echo_of_tokens
from facet.server.exchange import carry_out
from facet.server.frontend import Frontend, check_count, response_id_of
from facet.server.protocol.completions import UNSUPPORTED_IN_COMPLETIONS, CompletionRequest
from facet.server.protocol.sampling_fields import refuse_unsupported, sampling_settings

Prompt = str | list[int]


class CompletionsEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(CompletionRequest)

    async def __call__(self, request: Request) -> Response:
        frontend = self._frontend
        fields: CompletionRequest
        async with frontend.reading(request, self._decoder) as fields:
            model = frontend.model_named(fields.model)
            refuse_unsupported(fields)
            refuse_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
            if fields.best_of is not None and fields.best_of != (fields.n or 1):
                raise RequestError("best_of is not supported. Leave it out, or set it to n.", field="best_of")
            prompts, sampling = as_prompts(fields.prompt), self._sampling(fields)
            n, num_answers = sampling.n, len(prompts) * sampling.n
            check_count(len(prompts), n, frontend.bridge.max_pending)
            frontend.bridge.check_room(num_answers)
            response_id = response_id_of("cmpl", fields.request_id, request)
            request_ids = frontend.bridge.new_ids(response_id, num_answers)
            prepared = await frontend.in_thread(partial(_prepare, fields, prompts, sampling, model.asked, request_ids))
        requests = [request for one, _ in prepared for request in one.requests]
        exchange = CompletionExchange(
            response_id,
            fields,
            requests,
            [echo for _, echo in prepared for _ in range(n)],
            model,
            n=n,
            always_ends_with_usage=frontend.config.enable_force_include_usage,
        )
        return await carry_out(exchange, requests, frontend, request, n=n, stream=bool(fields.stream))

    def _sampling(self, fields: CompletionRequest) -> SamplingParams:
        model = self._frontend.model
        model.check_logprobs(fields.logprobs, "logprobs")
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        model.check_num_named(fields.logprob_token_ids)
        given = {**sampling_settings(fields), "logprobs": fields.logprobs}
        if fields.is_echo_only:
            given["max_tokens"] = 1
        if fields.echo and fields.wants_logprobs:
            given["prompt_logprobs"] = max(fields.logprobs or 0, fields.prompt_logprobs or 0)
        return model.asked.sampling(given, max_tokens=DEFAULT_MAX_TOKENS)


def _prepare(
    fields: CompletionRequest,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    model: AskedModel,
    request_ids: Sequence[str],
) -> list[tuple[PreparedQuestion, Echo]]:
    """Each prompt made ready, and as it is to be echoed. In a thread."""
    n, prepared = sampling.n, []
    for index, prompt in enumerate(prompts):
        question = TextQuestion(
            prompt=prompt,
            sampling=sampling,
            is_max_tokens_default=fields.max_tokens is None,
            response_format=fields.response_format,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            add_special_tokens=model.adds_special_tokens(
                prompt, wanted=fields.add_special_tokens, split_special_tokens=bool(fields.split_special_tokens)
            ),
            split_special_tokens=bool(fields.split_special_tokens),
            has_prompt_logprobs_in_every_answer=bool(fields.echo),
        )
        one = prepare(question, model, request_ids[index * n : (index + 1) * n])
        echo = NO_ECHO
        if fields.echo:
            tokenizer, token_ids = model.require_tokenizer(), one.prompt_token_ids
            if isinstance(prompt, str) and sampling.truncate_prompt_tokens is None:
                echo = echo_of_text(
                    prompt,
                    token_ids,
                    tokenizer,
                    has_added_tokens=question.add_special_tokens,
                    with_offsets=fields.wants_logprobs,
                )
            else:
                echo = echo_of_tokens(token_ids, tokenizer, with_offsets=fields.wants_logprobs)
        prepared.append((one, echo))
    return prepared


def as_prompts(prompt: str | list[str | int | list[int]] | None) -> list[Prompt]:
    """The four shapes OpenAI allows, as a list of prompts."""
    if prompt is None or prompt == []:
        raise RequestError("prompt is missing or empty. Send text, token ids, or a list of either.", field="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    prompts: list[Prompt] = []
    for item in prompt:
        if isinstance(item, int):
            raise RequestError("prompt mixes token ids with other prompts. Send one kind.", field="prompt")
        prompts.append(item)
    return prompts
