"""Formats the answer of /v1/messages, as a message and as the events of a stream."""

from collections.abc import Iterable, Iterator

import msgspec

from facet.engine.messages import NewTokens
from facet.prompts import PreparedQuestion, ReplyReader
from facet.server.anthropic.dialect import ANTHROPIC
from facet.server.anthropic.wire import (
    BlockDelta,
    BlockGrowth,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    OutputBlock,
    OutputTokens,
    SignatureDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from facet.server.errors import Fault
from facet.server.reply_parts import Change, Closed, Grown, Opened, ReplyPart, ReplyParts
from facet.server.served_model import ServedModel

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer:
    """One answer, fed with tokens."""

    def __init__(self, reader: ReplyReader) -> None:
        self.tokens = reader.tokens
        self.parts = ReplyParts()
        self._reader = reader

    def feed(self, new: NewTokens) -> list[Change]:
        changes = list(self.parts.feed(self._reader.feed(new)))
        if self.tokens.finish_reason is not None:
            changes += self.parts.close()
        return changes

    @property
    def stop(self) -> StopDelta:
        if self.tokens.stop_string is not None:
            return StopDelta("stop_sequence", self.tokens.stop_string)
        return StopDelta(_STOP_REASONS.get(self._reader.finish_reason or "", "end_turn"), None)


class MessageExchange:
    """The answer to one HTTP request."""

    def __init__(
        self, response_id: str, prepared: PreparedQuestion, model: ServedModel, *, keeps_thoughts: bool
    ) -> None:
        self.dialect = ANTHROPIC
        self.response_id = response_id
        self._model_name = model.name
        self._num_prompt_tokens = len(prepared.prompt_token_ids)
        self._has_begun = False
        assert prepared.reply_format is not None, "a conversation is answered with a reply"
        (request,) = prepared.requests
        reader = ReplyReader(
            request, model.asked.require_tokenizer(), prepared.reply_format, keeps_thoughts=keeps_thoughts
        )
        self._answer = MessageAnswer(reader)
        self.answers = [self._answer]

    def response(self) -> Message:
        parts = [part for part in self._answer.parts.parts if part.kind != "call" or part.is_whole_call]
        message, stop = self._message([_block(part) for part in parts]), self._answer.stop
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        return message

    def opening(self) -> list[msgspec.Struct]:
        return []  # the first event says how much of the prompt was cached, which the first tokens tell

    def chunks(self, answer: MessageAnswer, new: NewTokens) -> list[msgspec.Struct]:
        changes = answer.feed(new)
        events: list[msgspec.Struct] = [] if self._has_begun else [MessageStart(self._message([]))]
        self._has_begun = True
        return [*events, *_events(changes)]

    def closing(self) -> list[msgspec.Struct]:
        return [MessageDelta(self._answer.stop, self._usage()), MessageStop()]

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self.dialect.error_body(fault)]

    def _message(self, content: list[OutputBlock]) -> Message:
        return Message(self.response_id, self._model_name, content, self._usage())

    def _usage(self) -> Usage:
        tokens = self._answer.tokens
        return Usage(
            input_tokens=self._num_prompt_tokens - tokens.num_cached_tokens,
            cache_read_input_tokens=tokens.num_cached_tokens,
            output_tokens=len(tokens.token_ids),
            output_tokens_details=OutputTokens(tokens.num_reasoning_tokens),
        )


def _events(changes: Iterable[Change]) -> Iterator[msgspec.Struct]:
    for change in changes:
        part = change.part
        if isinstance(change, Opened):
            yield BlockStart(part.index, _empty_block(part))
        elif isinstance(change, Grown):
            yield BlockGrowth(part.index, _delta(part, change.fragment))
        else:
            assert isinstance(change, Closed), "there is no other change"
            if part.kind == "thought":
                yield BlockGrowth(part.index, SignatureDelta(""))
            yield BlockStop(part.index)


def _block(part: ReplyPart) -> OutputBlock:
    if part.kind == "thought":
        return ThinkingBlock(part.text)
    if part.kind == "text":
        return TextBlock(part.text)
    return ToolUseBlock(part.call_id, part.name, msgspec.Raw(part.text.encode()))


def _empty_block(part: ReplyPart) -> OutputBlock:
    """A block as it is announced; its content follows."""
    if part.kind == "call":
        return ToolUseBlock(part.call_id, part.name, msgspec.Raw(b"{}"))
    return ThinkingBlock("") if part.kind == "thought" else TextBlock("")


def _delta(part: ReplyPart, fragment: str) -> BlockDelta:
    if part.kind == "thought":
        return ThinkingDelta(fragment)
    return TextDelta(fragment) if part.kind == "text" else InputJsonDelta(fragment)
