"""/v1/chat/completions: answer a conversation, with thoughts and tool calls told apart from the content."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.engine.messages import Token
from facet.sampling_params import SamplingParams
from facet.server.body import BodyDecoder
from facet.server.chat_answers import ChatAnswer, ChatForm
from facet.server.chat_prompts import ChatPrompt, make_chat_prompt, make_parser
from facet.server.engine_bridge import EngineCall
from facet.server.engine_requests import check_count, fit_max_tokens, make_requests, spell_bad_words
from facet.server.frontend import Frontend, json_response, request_id_of, take
from facet.server.logprobs import LogprobShapes
from facet.server.metrics import CallTimer
from facet.server.protocol.chat import UNSUPPORTED_IN_CHAT, ChatChunk, ChatChunkChoice, ChatRequest, ChatResponse
from facet.server.protocol.sampling_fields import refuse_unsupported, sampling_params
from facet.server.protocol.shared import Usage, make_usage
from facet.server.streaming import DONE, EventStream, WatchedCall, event

_CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class _Conversation:
    """One HTTP request, once it has been understood."""

    response_id: str
    fields: ChatRequest
    prompt: ChatPrompt
    answers: Sequence[ChatAnswer]
    timer: CallTimer

    def usage(self) -> Usage:
        tokens = [answer.tokens for answer in self.answers]
        num_completion_tokens = sum(len(answer.token_ids) for answer in tokens)
        return make_usage(len(self.prompt.token_ids), num_completion_tokens, tokens[0].num_cached_tokens)


class ChatEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(ChatRequest)

    async def __call__(self, request: Request) -> Response:
        frontend, model = self._frontend, self._frontend.model
        fields: ChatRequest = await frontend.read(request, self._decoder)
        model.check_name(fields.model)
        refuse_unsupported(fields)
        refuse_unsupported(fields, UNSUPPORTED_IN_CHAT)
        sampling = self._sampling(fields)
        check_count(1, sampling.n, frontend.bridge.max_pending)
        frontend.bridge.check_room(sampling.n)
        prompt, sampling = await frontend.in_thread(partial(self._encode, fields, sampling))
        response_id = f"chatcmpl-{fields.request_id or request_id_of(request)}"
        requests = make_requests(
            frontend.bridge.new_ids(response_id, sampling.n),
            [prompt.token_ids],
            sampling,
            model,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            grammar=prompt.grammar,
        )
        form = ChatForm(
            with_logprobs=bool(fields.logprobs),
            include_reasoning=fields.include_reasoning is not False,
            one_call_only=fields.parallel_tool_calls is False,
            return_token_ids=bool(fields.return_token_ids),
            shapes=LogprobShapes(model.tokenizer, as_token_ids=bool(fields.return_tokens_as_token_ids)),
        )
        answers = [
            ChatAnswer(index, make_parser(prompt, request.sampling, model), request.sampling, form)
            for index, request in enumerate(requests)
        ]
        timer = CallTimer(
            frontend.metrics,
            [len(prompt.token_ids)] * sampling.n,
            n=sampling.n,
            max_tokens=sampling.max_tokens,
            log_as=response_id if frontend.config.enable_log_requests else None,
        )
        conversation = _Conversation(response_id, fields, prompt, answers, timer)
        watched = WatchedCall(frontend.bridge.submit(requests), request.receive, timer)
        try:
            if fields.stream:
                # With the first answer in hand a refusal by the engine still has its own status.
                first = await watched.call.next()
                return EventStream(self._events(conversation, watched.call, first), watched)
            while not all(answer.is_finished for answer in answers):
                for answer, token in take(await watched.call.next(), watched.call, answers, timer):
                    answer.feed(token)
            watched.close()
        except BaseException:
            watched.close()
            raise
        return json_response(self._response(conversation, form))

    def _sampling(self, fields: ChatRequest) -> SamplingParams:
        model = self._frontend.model
        model.check_logprobs(fields.top_logprobs, "top_logprobs")
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        asked = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
        return sampling_params(
            fields,
            defaults=model.sampling_defaults,
            max_tokens=asked if asked is not None else model.max_tokens_default,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        )

    def _encode(self, fields: ChatRequest, sampling: SamplingParams) -> tuple[ChatPrompt, SamplingParams]:
        """In a thread."""
        model = self._frontend.model
        prompt = make_chat_prompt(fields, sampling, model)
        sampling = spell_bad_words(sampling, model)
        if fields.max_completion_tokens is None and fields.max_tokens is None:
            sampling = fit_max_tokens(sampling, len(prompt.token_ids), model)
        return prompt, sampling

    def _response(self, conversation: _Conversation, form: ChatForm) -> ChatResponse:
        prompt_logprobs = None
        if conversation.fields.prompt_logprobs is not None:
            entries = conversation.answers[0].tokens.prompt_logprobs
            prompt_logprobs = [None, *(form.shapes.prompt_position(entry) for entry in entries)]
        return ChatResponse(
            conversation.response_id,
            int(time.time()),
            self._frontend.model.name,
            [answer.choice() for answer in conversation.answers],
            conversation.usage(),
            prompt_logprobs,
            list(conversation.prompt.token_ids) if form.return_token_ids else None,
        )

    async def _events(
        self, conversation: _Conversation, call: EngineCall, batch: list[tuple[int, Token]]
    ) -> AsyncIterator[bytes]:
        """A message for each batch of answers, with the events of each token of it."""
        fields, answers = conversation.fields, conversation.answers
        encoder = msgspec.json.Encoder()
        created, name = int(time.time()), self._frontend.model.name

        def chunk(choices: list[ChatChunkChoice], usage: Usage | None) -> ChatChunk:
            return ChatChunk(conversation.response_id, created, name, choices, _CHUNK, usage)

        def running_usage() -> Usage | None:
            return conversation.usage() if fields.wants_usage_always else None

        opening = chunk([answer.first_chunk() for answer in answers[:1]], running_usage())
        if fields.return_token_ids:
            opening.prompt_token_ids = list(conversation.prompt.token_ids)
        yield event(encoder, opening) + b"".join(
            event(encoder, chunk([answer.first_chunk()], running_usage())) for answer in answers[1:]
        )
        num_open = len(answers)
        while True:
            events: list[bytes] = []
            failure: Exception | None = None
            try:
                for answer, token in take(batch, call, answers, conversation.timer):
                    for choice in answer.chunks(answer.feed(token)):
                        one = chunk([choice], running_usage())
                        if fields.return_token_ids:
                            one.token_ids = answer.unsent_token_ids()
                        events.append(event(encoder, one))
                    num_open -= answer.is_finished
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
            yield event(encoder, chunk([], conversation.usage()))
        yield DONE
