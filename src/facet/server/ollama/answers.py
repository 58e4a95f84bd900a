"""Formats the answers of /api/chat and /api/generate, whole or line by line."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from facet.engine.messages import NewTokens
from facet.prompts import PreparedQuestion, ReplyReader, TextReader
from facet.server.errors import Fault
from facet.server.ollama.dialect import OLLAMA
from facet.server.ollama.wire import ChatLine, Function, GenerateLine, OutputMessage, ToolCall
from facet.server.reply_parts import Closed, Grown, ReplyPart, ReplyParts
from facet.server.served_model import ServedModel


@dataclass(slots=True)
class Said:
    """What an answer says, or a step of it. Calls are whole."""

    content: str = ""
    thinking: str = ""
    calls: list[ReplyPart] = field(default_factory=list)

    def add(self, more: "Said") -> None:
        self.content += more.content
        self.thinking += more.thinking
        self.calls += more.calls

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thinking or self.calls)


class OllamaAnswer:
    """One answer, fed with tokens: a reply, or a text where the prompt was raw."""

    def __init__(self, reader: ReplyReader | TextReader) -> None:
        self.tokens = reader.tokens
        self.all = Said()
        self.first_token_time: float | None = None
        self._reader = reader
        self._parts = ReplyParts()

    def feed(self, new: NewTokens) -> Said:
        if new.token_ids and self.first_token_time is None:
            self.first_token_time = time.monotonic()
        said = Said(self._reader.feed(new)) if isinstance(self._reader, TextReader) else self._of_reply(new)
        self.all.add(said)
        return said

    def _of_reply(self, new: NewTokens) -> Said:
        assert isinstance(self._reader, ReplyReader), "a text is no reply"
        said = Said()
        changes = list(self._parts.feed(self._reader.feed(new)))
        if self.tokens.finish_reason is not None:
            changes += self._parts.close()
        for change in changes:
            if isinstance(change, Grown) and change.part.kind == "text":
                said.content += change.fragment
            elif isinstance(change, Grown) and change.part.kind == "thought":
                said.thinking += change.fragment
            elif isinstance(change, Closed) and change.part.is_whole_call:
                said.calls.append(change.part)
        return said


class OllamaExchange:
    """The answer to one HTTP request, to /api/chat or to /api/generate."""

    def __init__(self, response_id: str, prepared: PreparedQuestion, model: ServedModel, *, is_chat: bool) -> None:
        self.dialect = OLLAMA
        self.response_id = response_id
        self._model_name, self._is_chat = model.name, is_chat
        self._num_prompt_tokens = len(prepared.prompt_token_ids)
        self._start_time = time.monotonic()
        (request,) = prepared.requests
        tokenizer = model.asked.require_tokenizer()
        self._answer = OllamaAnswer(
            TextReader(request, tokenizer)
            if prepared.reply_format is None
            else ReplyReader(request, tokenizer, prepared.reply_format)
        )
        self.answers = [self._answer]

    def response(self) -> ChatLine | GenerateLine:
        return make_line(self._model_name, self._answer.all, is_chat=self._is_chat, **self._end())

    def opening(self) -> list[msgspec.Struct]:
        return []

    def chunks(self, answer: OllamaAnswer, new: NewTokens) -> list[msgspec.Struct]:
        said = answer.feed(new)
        return [] if said.is_empty else [make_line(self._model_name, said, is_chat=self._is_chat)]

    def closing(self) -> list[msgspec.Struct]:
        return [make_line(self._model_name, Said(), is_chat=self._is_chat, **self._end())]

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self.dialect.error_body(fault)]

    def _end(self) -> dict[str, Any]:
        """Why the answer ended, and what it took."""
        tokens, now = self._answer.tokens, time.monotonic()
        first = self._answer.first_token_time or now
        return {
            "done_reason": "length" if tokens.finish_reason == "length" else "stop",
            "total_duration": _nanoseconds(now - self._start_time),
            "load_duration": 0,
            "prompt_eval_count": self._num_prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self._start_time),
            "eval_count": len(tokens.token_ids),
            "eval_duration": _nanoseconds(now - first),
        }


def make_line(model_name: str, said: Said, *, is_chat: bool, **end: Any) -> ChatLine | GenerateLine:
    """`end` is what the last line says besides."""
    common: dict[str, Any] = {"model": model_name, "created_at": now_as_text(), "done": bool(end), **end}
    if not is_chat:
        return GenerateLine(response=said.content, thinking=said.thinking or None, **common)
    calls = [ToolCall(Function(call.name, msgspec.Raw(call.text.encode())), call.call_id) for call in said.calls]
    return ChatLine(message=OutputMessage("assistant", said.content, said.thinking or None, calls), **common)


def now_as_text() -> str:
    return as_text(time.time())


def as_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
