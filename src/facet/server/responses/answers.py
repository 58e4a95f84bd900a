"""Formats the answer of /v1/responses, as a response and as the events of a stream."""

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from facet.chat.custom_tools import InputReader, whole_input
from facet.engine.messages import NewTokens
from facet.prompts import PreparedQuestion, ReplyReader
from facet.server.errors import Fault
from facet.server.reply_parts import Change, Grown, Opened, ReplyPart, ReplyParts
from facet.server.responses.dialect import RESPONSES
from facet.server.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    TextDelta,
    TextDone,
)
from facet.server.responses.wire import (
    CustomToolCall,
    FunctionCall,
    IncompleteDetails,
    InputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningItem,
    ReasoningText,
    ReasoningTokens,
    ResponseError,
    ResponseObject,
    ResponsesRequest,
    Status,
    TextFormat,
    TextSettings,
    Usage,
)
from facet.server.served_model import ServedModel

_ID_PREFIXES = {"thought": "rs", "text": "msg", "call": "fc"}

EventType = TypeVar("EventType", bound=Event)


class ResponseAnswer:
    """One answer, fed with tokens. Every part of the reply is an item with an id."""

    def __init__(self, reader: ReplyReader) -> None:
        self.tokens = reader.tokens
        self.parts = ReplyParts()
        self._reader = reader
        self._ids: list[str] = []

    def feed(self, new: NewTokens) -> list[Change]:
        changes = list(self.parts.feed(self._reader.feed(new)))
        if self.tokens.finish_reason is not None:
            changes += self.parts.close()
        return changes

    def id_of(self, part: ReplyPart) -> str:
        while len(self._ids) <= part.index:
            named = self.parts.parts[len(self._ids)]
            prefix = "ctc" if self.is_custom(named) else _ID_PREFIXES[named.kind]
            self._ids.append(f"{prefix}_{secrets.token_hex(24)}")
        return self._ids[part.index]

    def is_custom(self, part: ReplyPart) -> bool:
        """Whether it is a call of a tool that takes text."""
        return part.kind == "call" and part.name in self._reader.custom_tools

    def item(self, part: ReplyPart, *, is_new: bool = False) -> OutputItem:
        """The item as far as it has come, or as it is announced."""
        item_id, text = self.id_of(part), "" if is_new else part.text
        status = "in_progress" if is_new or part.is_open else self._status(part)
        if self.is_custom(part):
            return CustomToolCall(part.call_id, part.name, whole_input(text) if text else "", item_id, status)
        if part.kind == "call":
            return FunctionCall(part.call_id, part.name, text, item_id, status)
        if part.kind == "thought":
            return ReasoningItem(item_id, content=[] if is_new else [ReasoningText(text)], status=status)
        return OutputMessage(item_id, status, [] if is_new else [OutputText(text)])

    def _status(self, part: ReplyPart) -> Status:
        is_cut = self.tokens.finish_reason == "length" and part is self.parts.parts[-1]
        return "incomplete" if is_cut else "completed"


class ResponseExchange:
    """The answer to one HTTP request. `keep` is given the response when it has ended."""

    def __init__(
        self,
        response_id: str,
        fields: ResponsesRequest,
        prepared: PreparedQuestion,
        model: ServedModel,
        keep: Callable[[ResponseObject, ReplyParts], None],
    ) -> None:
        self.dialect = RESPONSES
        self.response_id = response_id
        self._fields, self._keep = fields, keep
        self._created_at, self._model_name = int(time.time()), model.name
        self._num_prompt_tokens = len(prepared.prompt_token_ids)
        self._num_media_tokens = prepared.num_media_tokens
        self._numbers = itertools.count()
        assert prepared.reply_format is not None, "a conversation is answered with a reply"
        (request,) = prepared.requests
        self._sampling = request.sampling
        reader = ReplyReader(
            request,
            model.asked.require_tokenizer(),
            prepared.reply_format,
            keeps_thoughts=fields.include_reasoning is not False,
        )
        self._answer = ResponseAnswer(reader)
        self.answers = [self._answer]
        self._custom_inputs: dict[int, InputReader] = {}  # of calls of custom tools, by the index of their item

    def response(self) -> ResponseObject:
        is_cut = self._answer.tokens.finish_reason == "length"
        response = self.snapshot("incomplete" if is_cut else "completed")
        if is_cut:
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        self._keep(response, self._answer.parts)
        return response

    def failed(self, fault: Fault) -> ResponseObject:
        response = self.snapshot("failed")
        response.error = ResponseError("server_error" if fault.status >= 500 else "invalid_prompt", fault.message)
        self._keep(response, self._answer.parts)
        return response

    def snapshot(self, status: Status) -> ResponseObject:
        """The response as far as it has come."""
        fields, answer = self._fields, self._answer
        return ResponseObject(
            id=self.response_id,
            created_at=self._created_at,
            model=self._model_name,
            status=status,
            output=[answer.item(part) for part in answer.parts.parts],
            usage=None if status == "in_progress" else self._usage(),
            instructions=fields.instructions,
            max_output_tokens=fields.max_output_tokens,
            metadata=fields.metadata or {},
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            previous_response_id=fields.previous_response_id,
            reasoning=fields.reasoning or Reasoning(),
            background=bool(fields.background),
            store=fields.store is not False,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            text=fields.text if fields.text and fields.text.format else TextSettings(TextFormat("text")),
            tools=fields.tools or [],
            tool_choice=fields.tool_choice or "auto",
            user=fields.user,
        )

    def opening(self) -> list[msgspec.Struct]:
        response = self.snapshot("in_progress")
        return [self._event(ResponseCreated, response=response), self._event(ResponseInProgress, response=response)]

    def chunks(self, answer: ResponseAnswer, new: NewTokens) -> list[msgspec.Struct]:
        return list(self._events(answer.feed(new)))

    def closing(self) -> list[msgspec.Struct]:
        response = self.response()
        kind = ResponseCompleted if response.status == "completed" else ResponseIncomplete
        return [self._event(kind, response=response)]

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self._event(ResponseFailed, response=self.failed(fault))]

    def _events(self, changes: Iterable[Change]) -> Iterator[Event]:
        for change in changes:
            if isinstance(change, Opened):
                yield from self._opened(change.part)
            elif isinstance(change, Grown):
                yield from self._grown(change.part, change.fragment)
            else:
                yield from self._closed(change.part)

    def _opened(self, part: ReplyPart) -> Iterator[Event]:
        item = self._answer.item(part, is_new=True)
        yield self._event(ItemAdded, output_index=part.index, item=item)
        if part.kind != "call":
            yield self._event(PartAdded, part, part=_content(part, ""))

    def _grown(self, part: ReplyPart, fragment: str) -> Iterator[Event]:
        if self._answer.is_custom(part):
            text = self._custom_inputs.setdefault(part.index, InputReader()).push(fragment)
            if text:
                yield self._event(InputDelta, part, delta=text)
        elif part.kind == "call":
            yield self._event(ArgumentsDelta, part, delta=fragment)
        else:
            yield self._event(TextDelta if part.kind == "text" else ReasoningDelta, part, delta=fragment)

    def _closed(self, part: ReplyPart) -> Iterator[Event]:
        if self._answer.is_custom(part):
            yield self._event(InputDone, part, input=whole_input(part.text))
        elif part.kind == "call":
            yield self._event(ArgumentsDone, part, arguments=part.text, name=part.name)
        else:
            yield self._event(TextDone if part.kind == "text" else ReasoningDone, part, text=part.text)
            yield self._event(PartDone, part, part=_content(part, part.text))
        yield self._event(ItemDone, output_index=part.index, item=self._answer.item(part))

    def _event(self, kind: Callable[..., EventType], about: ReplyPart | None = None, **values: Any) -> EventType:
        """`about` is the part whose item the event names."""
        if about is not None:
            values |= {"item_id": self._answer.id_of(about), "output_index": about.index}
        return kind(sequence_number=next(self._numbers), **values)

    def _usage(self) -> Usage:
        tokens = self._answer.tokens
        return Usage(
            input_tokens=self._num_prompt_tokens,
            input_tokens_details=InputDetails.of(tokens.num_cached_tokens, self._num_media_tokens),
            output_tokens=len(tokens.token_ids),
            output_tokens_details=ReasoningTokens(tokens.num_reasoning_tokens),
            total_tokens=self._num_prompt_tokens + len(tokens.token_ids),
        )


def _content(part: ReplyPart, text: str) -> OutputText | ReasoningText:
    return OutputText(text) if part.kind == "text" else ReasoningText(text)
