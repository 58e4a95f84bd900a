"""Formats the answers of /v1/chat/completions, as messages and as chunks of a stream."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from facet.chat.custom_tools import InputReader, whole_input
from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from facet.chat.reply import ToolCall as ReplyToolCall
from facet.engine.messages import NewTokens
from facet.prompts import PreparedQuestion, ReplyReader
from facet.server.dialect import OPENAI
from facet.server.errors import Fault
from facet.server.logprobs import LogprobShapes
from facet.server.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatFinalChoice,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    CustomCall,
    CustomDelta,
    CustomToolCall,
    FunctionCall,
    FunctionDelta,
    LegacyChatMessage,
    ToolCall,
    ToolCallDelta,
)
from facet.server.protocol.shared import Usage, make_usage
from facet.server.served_model import ServedModel

_CHUNK = "chat.completion.chunk"


class ChatExchange:
    """The answers to one HTTP request."""

    def __init__(
        self,
        response_id: str,
        fields: ChatRequest,
        prepared: PreparedQuestion,
        model: ServedModel,
        *,
        always_ends_with_usage: bool,
    ) -> None:
        """If `echo` asks for it, every answer begins with the last message, where that is the assistant's."""
        self.dialect = OPENAI
        self.response_id = response_id
        self._fields = fields
        self._prompt_token_ids = list(prepared.prompt_token_ids)
        self._num_media_tokens = prepared.num_media_tokens
        self._created, self._model_name = int(time.time()), model.name
        self._always_has_usage = fields.wants_usage_always
        self._ends_with_usage = fields.wants_usage_at_end or always_ends_with_usage
        tokenizer, reply_format = model.asked.require_tokenizer(), prepared.reply_format
        assert reply_format is not None, "a chat is answered with a reply"
        self._shapes = model.logprob_shapes(fields.return_tokens_as_token_ids)
        keeps_thoughts = fields.include_reasoning is not False
        self._echoed = last_reply(fields.messages) if fields.echo else ""
        self.answers: Sequence[ChatAnswer] = [
            ChatAnswer(
                index,
                ReplyReader(request, tokenizer, reply_format, keeps_thoughts=keeps_thoughts),
                self._shapes if fields.logprobs else None,
                echoed=self._echoed,
                calls_functions=bool(fields.functions),
            )
            for index, request in enumerate(prepared.requests)
        ]

    def response(self) -> ChatResponse:
        fields, prompt_logprobs = self._fields, None
        if fields.prompt_logprobs is not None:
            entries = self.answers[0].tokens.prompt_logprobs
            prompt_logprobs = [None, *(self._shapes.prompt_position(entry) for entry in entries)]
        return ChatResponse(
            self.response_id,
            self._created,
            self._model_name,
            [answer.choice(with_token_ids=bool(fields.return_token_ids)) for answer in self.answers],
            self._usage(),
            prompt_logprobs,
            self._prompt_token_ids if fields.return_token_ids else None,
        )

    def opening(self) -> list[msgspec.Struct]:
        chunks = [self._chunk([answer.first_chunk()], has_usage=self._always_has_usage) for answer in self.answers]
        if self._fields.return_token_ids:
            chunks[0].prompt_token_ids = self._prompt_token_ids
        if self._echoed:
            has_usage = self._always_has_usage
            chunks += [self._chunk([answer.echo_chunk()], has_usage=has_usage) for answer in self.answers]
        return [*chunks]

    def chunks(self, answer: "ChatAnswer", new: NewTokens) -> list[msgspec.Struct]:
        chunks: list[msgspec.Struct] = []
        for choice in answer.chunks(answer.feed(new)):
            if self._fields.return_token_ids:
                choice.token_ids = answer.unsent_token_ids()
            chunks.append(self._chunk([choice], has_usage=self._always_has_usage))
        return chunks

    def closing(self) -> list[msgspec.Struct]:
        return [self._chunk([], has_usage=True)] if self._ends_with_usage else []

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self.dialect.error_body(fault)]

    def _chunk(self, choices: list[ChatChunkChoice], *, has_usage: bool) -> ChatChunk:
        usage = self._usage() if has_usage else None
        return ChatChunk(self.response_id, self._created, self._model_name, choices, _CHUNK, usage)

    def _usage(self) -> Usage:
        tokens = [answer.tokens for answer in self.answers]
        num_completion_tokens = sum(len(answer.token_ids) for answer in tokens)
        return make_usage(
            len(self._prompt_token_ids),
            num_completion_tokens,
            tokens[0].num_cached_tokens,
            sum(answer.num_reasoning_tokens for answer in tokens),
            self._num_media_tokens,
            num_drafts=sum(answer.num_drafts for answer in tokens),
            num_accepted=sum(answer.num_accepted for answer in tokens),
        )


class ChatAnswer:
    """One answer, fed with tokens. `shapes` are those of log-probabilities, where they are asked for.

    `echoed` comes before its content. With `calls_functions` a call is written in the form that came before tools.
    """

    def __init__(
        self, index: int, reader: ReplyReader, shapes: LogprobShapes | None, *, echoed: str, calls_functions: bool
    ) -> None:
        self._echoed, self._calls_functions = echoed, calls_functions
        self.tokens = reader.tokens
        self.feed = reader.feed
        self._index = index
        self._reader = reader
        self._custom_inputs: dict[int, InputReader] = {}  # of calls of custom tools, by their index
        self._shapes = shapes
        self._num_sent_logprobs = 0
        self._num_sent_tokens = 0

    def first_chunk(self) -> ChatChunkChoice:
        return ChatChunkChoice(self._index, ChatDelta(role="assistant", content=""))

    def echo_chunk(self) -> ChatChunkChoice:
        return ChatChunkChoice(self._index, ChatDelta(content=self._echoed))

    def chunks(self, deltas: list[Delta]) -> list[ChatChunkChoice]:
        """A chunk for each delta, and one for the end."""
        wire = [one for delta in deltas if (one := self._as_wire(delta)) is not None]
        choices = [ChatChunkChoice(self._index, delta) for delta in wire]
        if self.tokens.finish_reason is not None:
            finish_reason, stop_reason = self._finish_reason, self.tokens.stop_reason
            choices.append(
                ChatFinalChoice(self._index, ChatDelta(), finish_reason=finish_reason, stop_reason=stop_reason)
            )
        if choices and self._shapes is not None:
            # With the first event that follows them: a token whose text is held back has its turn later.
            choices[0].logprobs = self._logprobs(self._shapes, self._num_sent_logprobs)
            self._num_sent_logprobs = len(self.tokens.logprobs)
        return choices

    def _as_wire(self, delta: Delta) -> ChatDelta | None:
        """What a stream says of a delta. None: nothing yet."""
        if isinstance(delta, ToolCallStart) and delta.name in self._reader.custom_tools:
            self._custom_inputs[delta.index] = InputReader()
            custom, call_id, kind = CustomDelta(delta.name, ""), delta.call_id, "custom"
            return ChatDelta(tool_calls=[ToolCallDelta(delta.index, custom=custom, id=call_id, type=kind)])
        if isinstance(delta, ToolCallArguments) and (reader := self._custom_inputs.get(delta.index)) is not None:
            text = reader.push(delta.fragment)
            call = ToolCallDelta(delta.index, custom=CustomDelta(input=text))
            return ChatDelta(tool_calls=[call]) if text else None
        return as_legacy_wire(delta) if self._calls_functions else as_wire(delta)

    def unsent_token_ids(self) -> list[int]:
        start, self._num_sent_tokens = self._num_sent_tokens, len(self.tokens.token_ids)
        return self.tokens.token_ids[start:]

    def choice(self, *, with_token_ids: bool) -> ChatChoice:
        return ChatChoice(
            index=self._index,
            message=self._message(),
            finish_reason=self._finish_reason or "stop",
            logprobs=None if self._shapes is None else self._logprobs(self._shapes, 0),
            stop_reason=self.tokens.stop_reason,
            token_ids=self.tokens.token_ids if with_token_ids else None,
        )

    @property
    def _finish_reason(self) -> str | None:
        reason = self._reader.finish_reason
        return "function_call" if self._calls_functions and reason == "tool_calls" else reason

    def _message(self) -> ChatMessage:
        reply = self._reader.reply()
        content = self._echoed + (reply.content or "") if self._echoed else reply.content
        if self._calls_functions:
            called = reply.tool_calls[0].function if reply.tool_calls else None
            function_call = None if called is None else FunctionCall(called.arguments, called.name)
            return LegacyChatMessage(content, reply.reasoning, reply.reasoning, function_call=function_call)
        return ChatMessage(content, reply.reasoning, reply.reasoning, [*map(self._call, reply.tool_calls)])

    def _call(self, call: ReplyToolCall) -> ToolCall | CustomToolCall:
        name, arguments = call.function.name, call.function.arguments
        if name in self._reader.custom_tools:
            return CustomToolCall(call.id, CustomCall(name, whole_input(arguments)))
        return ToolCall(call.id, FunctionCall(arguments, name))

    def _logprobs(self, shapes: LogprobShapes, start: int) -> ChatLogprobs:
        return ChatLogprobs([shapes.content(entry) for entry in self.tokens.logprobs[start:]])


def as_wire(delta: Delta) -> ChatDelta:
    if isinstance(delta, ContentDelta):
        return ChatDelta(content=delta.text)
    if isinstance(delta, ReasoningDelta):
        return ChatDelta(reasoning=delta.text, reasoning_content=delta.text)
    if isinstance(delta, ToolCallStart):
        call = ToolCallDelta(delta.index, FunctionDelta(delta.name, ""), id=delta.call_id, type="function")
    else:
        assert isinstance(delta, ToolCallArguments), f"a reply has no {type(delta).__name__}"
        call = ToolCallDelta(delta.index, FunctionDelta(arguments=delta.fragment))
    return ChatDelta(tool_calls=[call])


def as_legacy_wire(delta: Delta) -> ChatDelta:
    """A delta with a call in the form that came before tools."""
    wire = as_wire(delta)
    return wire if wire.tool_calls is None else ChatDelta(function_call=wire.tool_calls[0].function)


def last_reply(messages: Sequence[Any]) -> str:
    """The text of the last message, if it is the assistant's. It was checked when the prompt was made."""
    last = messages[-1]
    if last["role"] != "assistant":
        return ""
    content = last.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content if "text" in part)
