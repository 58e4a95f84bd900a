"""Formats the answers of /v1/chat/completions, as messages and as chunks of a stream."""

from dataclasses import dataclass

from facet.chat.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from facet.prompts import ReplyReader
from facet.server.logprobs import LogprobShapes
from facet.server.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatFinalChoice,
    ChatLogprobs,
    ChatMessage,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """How the answers of one HTTP request are to look."""

    with_logprobs: bool
    return_token_ids: bool
    shapes: LogprobShapes


class ChatAnswer:
    """One answer, fed with tokens."""

    def __init__(self, index: int, reader: ReplyReader, form: ChatForm) -> None:
        self.tokens = reader.tokens
        self.feed = reader.feed
        self._index = index
        self._reader = reader
        self._form = form
        self._num_sent_logprobs = 0
        self._num_sent_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self.tokens.finish_reason is not None

    def first_chunk(self) -> ChatChunkChoice:
        return ChatChunkChoice(self._index, ChatDelta(role="assistant", content=""))

    def chunks(self, deltas: list[Delta]) -> list[ChatChunkChoice]:
        """Events of the stream: one for each delta, and the end by itself."""
        choices = [ChatChunkChoice(self._index, as_wire(delta)) for delta in deltas]
        if self.is_finished:
            final = ChatFinalChoice(self._index, ChatDelta(), None, self._reader.finish_reason, self.tokens.stop_reason)
            choices.append(final)
        if choices and self._form.with_logprobs:
            # With the first event that follows them: a token whose text is held back has its turn later.
            choices[0].logprobs = self._logprobs(self._num_sent_logprobs)
            self._num_sent_logprobs = len(self.tokens.logprobs)
        return choices

    def unsent_token_ids(self) -> list[int]:
        start, self._num_sent_tokens = self._num_sent_tokens, len(self.tokens.token_ids)
        return self.tokens.token_ids[start:]

    def choice(self) -> ChatChoice:
        reply = self._reader.reply()
        return ChatChoice(
            index=self._index,
            message=ChatMessage(
                content=reply.content,
                reasoning=reply.reasoning,
                reasoning_content=reply.reasoning,
                tool_calls=[
                    ToolCall(call.id, FunctionCall(call.function.arguments, call.function.name))
                    for call in reply.tool_calls
                ],
            ),
            finish_reason=self._reader.finish_reason or "stop",
            logprobs=self._logprobs(0) if self._form.with_logprobs else None,
            stop_reason=self.tokens.stop_reason,
            token_ids=self.tokens.token_ids if self._form.return_token_ids else None,
        )

    def _logprobs(self, start: int) -> ChatLogprobs:
        return ChatLogprobs([self._form.shapes.content(entry) for entry in self.tokens.logprobs[start:]])


def as_wire(delta: Delta) -> ChatDelta:
    if isinstance(delta, ContentDelta):
        return ChatDelta(content=delta.text)
    if isinstance(delta, ReasoningDelta):
        return ChatDelta(reasoning=delta.text, reasoning_content=delta.text)
    if isinstance(delta, ToolCallStart):
        call = ToolCallDelta(delta.index, FunctionDelta(delta.name, ""), delta.call_id, "function")
    else:
        assert isinstance(delta, ToolCallArguments), f"a reply has no {type(delta).__name__}"
        call = ToolCallDelta(delta.index, FunctionDelta(arguments=delta.fragment))
    return ChatDelta(tool_calls=[call])
