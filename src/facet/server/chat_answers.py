"""The answers of /v1/chat/completions: what the reply parser reads out of tokens, as messages and as chunks.

A parser belongs to one answer and to nobody else.
"""

from dataclasses import dataclass

from facet.chat.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ReplyParser,
    ToolCallArguments,
    ToolCallStart,
)
from facet.engine.messages import Token
from facet.sampling_params import SamplingParams
from facet.server.answers import AnswerTokens
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
    include_reasoning: bool
    one_call_only: bool  # parallel_tool_calls is false
    return_token_ids: bool
    shapes: LogprobShapes


class ChatAnswer:
    """One answer, fed with tokens."""

    def __init__(self, index: int, parser: ReplyParser, sampling: SamplingParams, form: ChatForm) -> None:
        self.tokens = AnswerTokens(sampling=sampling)
        self._index = index
        self._parser = parser
        self._form = form
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._num_sent_logprobs = 0
        self._num_sent_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self.tokens.finish_reason is not None

    @property
    def finish_reason(self) -> str | None:
        reason = self.tokens.finish_reason
        # A call that was cut off by length is no call to carry out.
        return "tool_calls" if reason == "stop" and self._calls else reason

    def feed(self, token: Token) -> list[Delta]:
        """What one answer of the engine added. After an early end the caller cancels the request."""
        token_id = self.tokens.take(token)
        deltas: list[Delta] = []
        if token_id is not None:
            deltas += self._parser.push(token_id)
        if self._parser.stop_string is None and self.is_finished:
            deltas += self._parser.finish(is_complete=self.tokens.finish_reason == "stop")
        if self._parser.stop_string is not None:
            self.tokens.stop_at(self._parser.stop_string)
        return self._keep(deltas)

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        """Add to the message what the client is to see, and return that."""
        kept: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self._content.append(delta.text)
            elif isinstance(delta, ReasoningDelta):
                if not self._form.include_reasoning:
                    continue
                self._reasoning.append(delta.text)
            elif isinstance(delta, ToolCallStart):
                if self._form.one_call_only and self._calls:
                    self.tokens.finish_reason = "stop"  # the answer ends where a second call would begin
                    break
                self._calls.append(ToolCall(delta.call_id, FunctionCall("", delta.name)))
            else:
                self._calls[delta.index].function.arguments += delta.fragment
            kept.append(delta)
        return kept

    def first_chunk(self) -> ChatChunkChoice:
        return ChatChunkChoice(self._index, ChatDelta(role="assistant", content=""))

    def chunks(self, deltas: list[Delta]) -> list[ChatChunkChoice]:
        """Events of the stream: one for each delta, and the end by itself."""
        choices = [ChatChunkChoice(self._index, as_wire(delta)) for delta in deltas]
        if self.is_finished:
            final = ChatFinalChoice(self._index, ChatDelta(), None, self.finish_reason, self.tokens.stop_reason)
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
        content, reasoning = "".join(self._content), "".join(self._reasoning) or None
        return ChatChoice(
            index=self._index,
            message=ChatMessage(
                content=None if not content and (self._calls or reasoning) else content,
                reasoning=reasoning,
                reasoning_content=reasoning,
                tool_calls=self._calls,
            ),
            finish_reason=self.finish_reason or "stop",
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
