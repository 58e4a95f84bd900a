"""Reads a streamed answer: when its chunks arrived, what they said, and what the server counted.

Chunks are decoded into the few fields that are needed; the decoder skips the rest of the JSON.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from facet.bench.http_client import BadAnswerError, EndedEarlyError, ExchangeError
from facet.http.event_stream import END_OF_STREAM, EventReader


class StreamError(ExchangeError):
    """The server reported an error in the middle of its stream."""

    kind = "error in the stream"


class NoTokensError(ExchangeError):
    kind = "no tokens"


class CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class _CompletionChoice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _CompletionChunk(msgspec.Struct):
    choices: list[_CompletionChoice] | None = None
    usage: Usage | None = None
    error: Any = None


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same, by its older name
    tool_calls: list[_CallDelta] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] | None = None
    usage: Usage | None = None
    error: Any = None


class AnswerReader(ABC):
    """Reads one stream. Only events with a choice count as chunks; the usage alone does not."""

    def __init__(self) -> None:
        self.chunk_times: list[float] = []
        self.parts: list[str] = []
        self.token_ids: list[int] = []  # where the server sends them
        self.calls: list[tuple[str, str, str]] = []  # id, name and arguments of each tool call
        self.usage: Usage | None = None
        self._events = EventReader()
        self._is_finished = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def on_body(self, body: bytes, now: float) -> None:
        for event in self._events.feed(body):
            self._on_event(event, now)

    def end(self, now: float) -> None:
        """The response is complete; raises if the answer is not."""
        for event in self._events.end():
            self._on_event(event, now)
        if not self._is_finished:
            raise EndedEarlyError("the stream has an end but neither [DONE] nor a finish reason")
        if not self.chunk_times:
            raise NoTokensError("the stream held no chunk with a token")

    def _on_event(self, event: bytes, now: float) -> None:
        if event == END_OF_STREAM:
            self._is_finished = True
            return
        try:
            self._on_chunk(event, now)
        except msgspec.MsgspecError as error:
            raise BadAnswerError(f"{error} in the chunk {event[:200].decode(errors='replace')}") from None

    @abstractmethod
    def _on_chunk(self, event: bytes, now: float) -> None: ...

    def _on_rest(self, usage: Usage | None, error: Any, finish_reason: str | None) -> None:
        if usage is not None:
            self.usage = usage
        if finish_reason is not None:
            self._is_finished = True
        if error is not None:
            raise StreamError(error_message(error))


class CompletionReader(AnswerReader):
    _decode: Callable[[bytes], _CompletionChunk] = staticmethod(msgspec.json.Decoder(_CompletionChunk).decode)

    def _on_chunk(self, event: bytes, now: float) -> None:
        chunk = self._decode(event)
        finish_reason = None
        if chunk.choices:
            choice = chunk.choices[0]
            finish_reason = choice.finish_reason
            self.chunk_times.append(now)  # also without text: a special token has none
            if choice.text:
                self.parts.append(choice.text)
            if choice.token_ids:
                self.token_ids += choice.token_ids
        if chunk.usage is not None or finish_reason is not None or chunk.error is not None:
            self._on_rest(chunk.usage, chunk.error, finish_reason)


class ChatReader(AnswerReader):
    _decode: Callable[[bytes], _ChatChunk] = staticmethod(msgspec.json.Decoder(_ChatChunk).decode)

    def _on_chunk(self, event: bytes, now: float) -> None:
        chunk = self._decode(event)
        finish_reason = None
        if chunk.choices:
            choice = chunk.choices[0]
            delta, finish_reason = choice.delta, choice.finish_reason
            thought = delta.reasoning or delta.reasoning_content
            # A chunk that only opens the assistant's turn carries no token, and some servers send it at once.
            if self.chunk_times or delta.content or thought or delta.tool_calls or delta.role is None:
                self.chunk_times.append(now)
            if delta.content:
                self.parts.append(delta.content)
            for call in delta.tool_calls or ():
                self._add_call(call)
        if chunk.usage is not None or finish_reason is not None or chunk.error is not None:
            self._on_rest(chunk.usage, chunk.error, finish_reason)

    def _add_call(self, delta: _CallDelta) -> None:
        if not 0 <= delta.index <= len(self.calls):
            raise BadAnswerError(f"a tool call has the index {delta.index} where there are {len(self.calls)}")
        if delta.index == len(self.calls):
            self.calls.append(("", "", ""))
        call_id, name, arguments = self.calls[delta.index]
        function = delta.function or _FunctionDelta()
        self.calls[delta.index] = (
            delta.id or call_id,
            name + (function.name or ""),
            arguments + (function.arguments or ""),
        )


def error_message(error: Any) -> str:
    """The message of an error in OpenAI's format, or else all of it."""
    while isinstance(error, dict) and isinstance(inner := error.get("error", error.get("message")), dict | str):
        error = inner
    return " ".join(str(error).split())[:500]
