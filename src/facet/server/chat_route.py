"""/v1/chat/completions: answers a conversation, with thoughts and tool calls separated from the content."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.engine.messages import Token
from facet.errors import RequestError
from facet.prompts import ChatQuestion, ReplyReader, prepare
from facet.server.body import BodyDecoder
from facet.server.chat_answers import ChatAnswer, ChatForm
from facet.server.engine_bridge import EngineCall
from facet.server.frontend import Frontend, check_count, json_response, request_id_of, take
from facet.server.logprobs import LogprobShapes
from facet.server.metrics import CallTimer
from facet.server.protocol.chat import UNSUPPORTED_IN_CHAT, ChatChunk, ChatChunkChoice, ChatRequest, ChatResponse
from facet.server.protocol.sampling_fields import refuse_unsupported, sampling_settings
from facet.server.protocol.shared import Usage, make_usage
from facet.server.streaming import DONE, EventStream, WatchedCall, event

_CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class _Conversation:
    """One HTTP request, once it has been understood."""

    response_id: str
    fields: ChatRequest
    prompt_token_ids: Sequence[int]
    answers: Sequence[ChatAnswer]
    timer: CallTimer

    def usage(self) -> Usage:
        tokens = [answer.tokens for answer in self.answers]
        num_completion_tokens = sum(len(answer.token_ids) for answer in tokens)
        return make_usage(len(self.prompt_token_ids), num_completion_tokens, tokens[0].num_cached_tokens)


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
        question = self._question(fields)
        n = question.sampling.n
        check_count(1, n, frontend.bridge.max_pending)
        frontend.bridge.check_room(n)
        response_id = f"chatcmpl-{fields.request_id or request_id_of(request)}"
        request_ids = frontend.bridge.new_ids(response_id, n)
        prepared = await frontend.in_thread(partial(prepare, question, model.asked, request_ids))
        form = ChatForm(
            with_logprobs=bool(fields.logprobs),
            return_token_ids=bool(fields.return_token_ids),
            shapes=LogprobShapes(model.asked.tokenizer, as_token_ids=bool(fields.return_tokens_as_token_ids)),
        )
        tokenizer, reply_format = model.asked.require_tokenizer(), prepared.reply_format
        assert reply_format is not None, "a chat has a reply"
        keeps_thoughts = fields.include_reasoning is not False
        answers = [
            ChatAnswer(
                index, ReplyReader(request.sampling, tokenizer, reply_format, keeps_thoughts=keeps_thoughts), form
            )
            for index, request in enumerate(prepared.requests)
        ]
        timer = CallTimer(
            frontend.metrics,
            [len(prepared.prompt_token_ids)] * n,
            n=n,
            max_tokens=prepared.requests[0].sampling.max_tokens,
            log_as=response_id if frontend.config.enable_log_requests else None,
        )
        conversation = _Conversation(response_id, fields, prepared.prompt_token_ids, answers, timer)
        watched = WatchedCall(frontend.bridge.submit(prepared.requests), request.receive, timer)
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

    def _question(self, fields: ChatRequest) -> ChatQuestion:
        model = self._frontend.model
        model.check_logprobs(fields.top_logprobs, "top_logprobs")
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        if fields.tools and fields.tool_choice in (None, "auto") and not self._frontend.config.enable_auto_tool_choice:
            raise RequestError(
                "This server was started with --no-enable-auto-tool-choice. Set tool_choice to none, required, or a "
                "tool.",
                field="tool_choice",
            )
        given = sampling_settings(fields)
        if fields.max_completion_tokens is not None:
            given["max_tokens"] = fields.max_completion_tokens
        if fields.logprobs:
            given["logprobs"] = fields.top_logprobs or 0
        return ChatQuestion(
            messages=fields.messages,
            sampling=model.asked.sampling(given, max_tokens=None),
            is_max_tokens_default="max_tokens" not in given,
            response_format=fields.response_format,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            tools=fields.tools,
            tool_choice=fields.tool_choice,
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            reasoning_effort=fields.reasoning_effort,
            chat_template_kwargs=fields.chat_template_kwargs,
            documents=fields.documents,
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=bool(fields.continue_final_message),
            add_special_tokens=bool(fields.add_special_tokens),
        )

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
            list(conversation.prompt_token_ids) if form.return_token_ids else None,
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
            opening.prompt_token_ids = list(conversation.prompt_token_ids)
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
