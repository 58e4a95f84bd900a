"""/v1/completions: continue one prompt or several, text or token ids."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.engine.messages import Token
from facet.errors import RequestError
from facet.sampling_params import SamplingParams
from facet.server.body import BodyDecoder
from facet.server.completion_answers import CompletionAnswer, CompletionForm
from facet.server.constraints import answer_grammar
from facet.server.engine_bridge import EngineCall
from facet.server.engine_requests import check_count, encode_prompt, fit_max_tokens, make_requests, spell_bad_words
from facet.server.frontend import Frontend, json_response, request_id_of, take
from facet.server.logprobs import LogprobShapes
from facet.server.metrics import CallTimer
from facet.server.protocol.completions import (
    UNSUPPORTED_IN_COMPLETIONS,
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from facet.server.protocol.sampling_fields import refuse_unsupported, sampling_params
from facet.server.protocol.shared import Usage, make_usage
from facet.server.streaming import DONE, EventStream, WatchedCall, event

# OpenAI's default for this endpoint.
_DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class _Encoded:
    text: str  # for echo; empty where nobody asked
    token_ids: list[int]


class CompletionsEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(CompletionRequest)

    async def __call__(self, request: Request) -> Response:
        frontend, model = self._frontend, self._frontend.model
        fields: CompletionRequest = await frontend.read(request, self._decoder)
        model.check_name(fields.model)
        refuse_unsupported(fields)
        refuse_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
        grammar = answer_grammar(fields)
        if fields.best_of is not None and fields.best_of != (fields.n or 1):
            raise RequestError("best_of is not supported. Leave it out, or set it to n.", field="best_of")
        prompts = as_prompts(fields.prompt)
        sampling, form = self._settings(fields)
        check_count(len(prompts), sampling.n, frontend.bridge.max_pending)
        frontend.bridge.check_room(len(prompts) * sampling.n)
        encoded, sampling = await frontend.in_thread(partial(self._encode, fields, prompts, sampling, form))
        base = f"cmpl-{fields.request_id or request_id_of(request)}"
        requests = make_requests(
            frontend.bridge.new_ids(base, len(prompts) * sampling.n),
            [prompt.token_ids for prompt in encoded],
            sampling,
            model,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            grammar=grammar,
            all_with_prompt_logprobs=form.echo,
        )
        answers = [
            CompletionAnswer(index, prompt.text, prompt.token_ids, requests[index].sampling, form, model)
            for index, prompt in enumerate(prompt for prompt in encoded for _ in range(sampling.n))
        ]
        timer = CallTimer(
            frontend.metrics,
            [len(answer.prompt_token_ids) for answer in answers],
            n=sampling.n,
            max_tokens=sampling.max_tokens,
            log_as=base if frontend.config.enable_log_requests else None,
        )
        watched = WatchedCall(frontend.bridge.submit(requests), request.receive, timer)
        try:
            if fields.stream:
                # With the first answer in hand a refusal by the engine still has its own status.
                first = await watched.call.next()
                events = self._events(base, fields, watched.call, answers, timer, first)
                return EventStream(events, watched)
            await self._collect(watched.call, answers, timer)
            watched.close()
        except BaseException:
            watched.close()
            raise
        for index, answer in enumerate(answers):
            if not form.echo:
                answer.tokens.prompt_logprobs = answers[index - index % sampling.n].tokens.prompt_logprobs
        choices = [answer.choice() for answer in answers]
        usage = usage_of(answers, sampling.n)
        return json_response(CompletionResponse(base, int(time.time()), model.name, choices, usage))

    def _settings(self, fields: CompletionRequest) -> tuple[SamplingParams, CompletionForm]:
        model = self._frontend.model
        model.check_logprobs(fields.logprobs, "logprobs")
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        echo = bool(fields.echo)
        echo_only = echo and fields.max_tokens == 0
        given = fields.max_tokens if fields.max_tokens is not None else model.max_tokens_default
        sampling = sampling_params(
            fields,
            defaults=model.sampling_defaults,
            max_tokens=1 if echo_only else _DEFAULT_MAX_TOKENS if given is None else given,
            logprobs=fields.logprobs,
        )
        if echo and fields.logprobs is not None:
            sampling = replace(sampling, prompt_logprobs=max(fields.logprobs, sampling.prompt_logprobs or 0))
        form = CompletionForm(
            num_top=fields.logprobs,
            echo=echo,
            echo_only=echo_only,
            return_token_ids=bool(fields.return_token_ids) or model.tokenizer is None,
            return_prompt_logprobs=fields.prompt_logprobs is not None,
            shapes=LogprobShapes(model.tokenizer, as_token_ids=bool(fields.return_tokens_as_token_ids)),
        )
        return sampling, form

    def _encode(
        self, fields: CompletionRequest, prompts: Sequence[Prompt], sampling: SamplingParams, form: CompletionForm
    ) -> tuple[list[_Encoded], SamplingParams]:
        """In a thread."""
        model = self._frontend.model
        add_special_tokens = fields.add_special_tokens is not False
        encoded = []
        for prompt in prompts:
            token_ids = encode_prompt(prompt, model, sampling, add_special_tokens=add_special_tokens)
            text = ""
            if form.echo:
                is_text = isinstance(prompt, str) and sampling.truncate_prompt_tokens is None
                text = str(prompt) if is_text else model.require_tokenizer().decode(token_ids)
            encoded.append(_Encoded(text, token_ids))
        sampling = spell_bad_words(sampling, model)
        if fields.max_tokens is None:
            sampling = fit_max_tokens(sampling, max(len(prompt.token_ids) for prompt in encoded), model)
        return encoded, sampling

    async def _collect(self, call: EngineCall, answers: Sequence[CompletionAnswer], timer: CallTimer) -> None:
        while not all(answer.is_finished for answer in answers):
            for answer, token in take(await call.next(), call, answers, timer):
                answer.feed(token)

    async def _events(
        self,
        response_id: str,
        fields: CompletionRequest,
        call: EngineCall,
        answers: Sequence[CompletionAnswer],
        timer: CallTimer,
        batch: list[tuple[int, Token]],
    ) -> AsyncIterator[bytes]:
        """A message for each batch of answers, with an event for each token of it."""
        encoder = msgspec.json.Encoder()
        created, name = int(time.time()), self._frontend.model.name
        num_open = len(answers)
        while True:
            events: list[bytes] = []
            failure: Exception | None = None
            try:
                for answer, token in take(batch, call, answers, timer):
                    choice = answer.chunk(answer.feed(token))
                    num_open -= answer.is_finished
                    if choice is not None:
                        usage = usage_of(answers, fields.n or 1) if fields.wants_usage_always else None
                        chunk = CompletionChunk(response_id, created, name, [choice], "text_completion", usage)
                        events.append(event(encoder, chunk))
            except Exception as error:
                failure = error  # after what came before it
            if events:
                yield b"".join(events)
            if failure is not None:
                raise failure
            if num_open == 0:
                break
            batch = await call.next()
        if fields.wants_usage_at_end or self._frontend.config.enable_force_include_usage:
            usage = usage_of(answers, fields.n or 1)
            yield event(encoder, CompletionChunk(response_id, created, name, [], "text_completion", usage))
        yield DONE


def usage_of(answers: Sequence[CompletionAnswer], n: int) -> Usage:
    firsts = answers[::n]  # a prompt counts once, however many answers it has
    return make_usage(
        sum(len(answer.prompt_token_ids) for answer in firsts),
        sum(answer.num_tokens for answer in answers),
        sum(answer.tokens.num_cached_tokens for answer in firsts),
    )


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
