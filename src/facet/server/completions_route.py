"""/v1/completions: continues one or several prompts, given as text or token ids."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.engine.messages import Token
from facet.errors import RequestError
from facet.prompts import PreparedQuestion, TextQuestion, prepare
from facet.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from facet.server.body import BodyDecoder
from facet.server.completion_answers import CompletionAnswer, CompletionForm
from facet.server.engine_bridge import EngineCall
from facet.server.frontend import Frontend, check_count, json_response, request_id_of, take
from facet.server.logprobs import LogprobShapes
from facet.server.metrics import CallTimer
from facet.server.protocol.completions import (
    UNSUPPORTED_IN_COMPLETIONS,
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from facet.server.protocol.sampling_fields import refuse_unsupported, sampling_settings
from facet.server.protocol.shared import Usage, make_usage
from facet.server.streaming import DONE, EventStream, WatchedCall, event

Prompt = str | list[int]


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
        if fields.best_of is not None and fields.best_of != (fields.n or 1):
            raise RequestError("best_of is not supported. Leave it out, or set it to n.", field="best_of")
        prompts = as_prompts(fields.prompt)
        form = self._form(fields)
        sampling = self._sampling(fields, form)
        num_answers = len(prompts) * sampling.n
        check_count(len(prompts), sampling.n, frontend.bridge.max_pending)
        frontend.bridge.check_room(num_answers)
        base = f"cmpl-{fields.request_id or request_id_of(request)}"
        request_ids = frontend.bridge.new_ids(base, num_answers)
        prepared = await frontend.in_thread(partial(self._prepare, fields, prompts, sampling, request_ids))
        requests = [(request, text) for one, text in prepared for request in one.requests]
        answers = [
            CompletionAnswer(index, text, request.prompt_token_ids, request.sampling, form, model.asked.tokenizer)
            for index, (request, text) in enumerate(requests)
        ]
        timer = CallTimer(
            frontend.metrics,
            [len(answer.prompt_token_ids) for answer in answers],
            n=sampling.n,
            max_tokens=requests[0][0].sampling.max_tokens,
            log_as=base if frontend.config.enable_log_requests else None,
        )
        watched = WatchedCall(frontend.bridge.submit([request for request, _ in requests]), request.receive, timer)
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

    def _form(self, fields: CompletionRequest) -> CompletionForm:
        tokenizer = self._frontend.model.asked.tokenizer
        return CompletionForm(
            num_top=fields.logprobs,
            echo=bool(fields.echo),
            echo_only=bool(fields.echo) and fields.max_tokens == 0,
            return_token_ids=bool(fields.return_token_ids) or tokenizer is None,
            return_prompt_logprobs=fields.prompt_logprobs is not None,
            shapes=LogprobShapes(tokenizer, as_token_ids=bool(fields.return_tokens_as_token_ids)),
        )

    def _sampling(self, fields: CompletionRequest, form: CompletionForm) -> SamplingParams:
        model = self._frontend.model
        model.check_logprobs(fields.logprobs, "logprobs")
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        given = {**sampling_settings(fields), "logprobs": fields.logprobs}
        if form.echo_only:
            given["max_tokens"] = 1
        if form.echo and fields.logprobs is not None:
            given["prompt_logprobs"] = max(fields.logprobs, fields.prompt_logprobs or 0)
        return model.asked.sampling(given, max_tokens=DEFAULT_MAX_TOKENS)

    def _prepare(
        self, fields: CompletionRequest, prompts: Sequence[Prompt], sampling: SamplingParams, request_ids: Sequence[str]
    ) -> list[tuple[PreparedQuestion, str]]:
        """Each prompt made ready, and its text where it is to be echoed. In a thread."""
        question = TextQuestion(
            prompt=prompts[0],
            sampling=sampling,
            is_max_tokens_default=fields.max_tokens is None,
            response_format=fields.response_format,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            add_special_tokens=fields.add_special_tokens is not False,
            has_prompt_logprobs_in_every_answer=bool(fields.echo),
        )
        model, n = self._frontend.model.asked, sampling.n
        prepared = []
        for index, prompt in enumerate(prompts):
            one = prepare(replace(question, prompt=prompt), model, request_ids[index * n : (index + 1) * n])
            text = ""
            if fields.echo:
                is_whole = isinstance(prompt, str) and sampling.truncate_prompt_tokens is None
                text = str(prompt) if is_whole else model.require_tokenizer().decode(one.prompt_token_ids)
            prepared.append((one, text))
        return prepared

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
