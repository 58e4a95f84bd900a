"""The events of a stream of /v1/responses."""

import msgspec

from facet.server.responses.wire import OutputItem, OutputText, ReasoningText, ResponseObject


class Event(msgspec.Struct, tag_field="type", kw_only=True):
    sequence_number: int


class ResponseEvent(Event, tag=""):
    response: ResponseObject


class ResponseCreated(ResponseEvent, tag="response.created"):
    pass


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    pass


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    pass


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    pass


class ResponseFailed(ResponseEvent, tag="response.failed"):
    pass


class ItemEvent(Event, tag=""):
    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(ItemEvent, tag="response.output_item.done"):
    pass


class InItem(Event, tag="", kw_only=True):
    """Something about an item, found by its place."""

    item_id: str
    output_index: int


class ContentEvent(InItem, tag="", kw_only=True):
    """Something about the only part of an item's content."""

    content_index: int = 0


class PartAdded(ContentEvent, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(ContentEvent, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class TextDelta(ContentEvent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[None] = []


class TextDone(ContentEvent, tag="response.output_text.done"):
    text: str
    logprobs: list[None] = []


class ReasoningDelta(ContentEvent, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(ContentEvent, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(InItem, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(InItem, tag="response.function_call_arguments.done"):
    arguments: str
    name: str


class InputDelta(InItem, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(InItem, tag="response.custom_tool_call_input.done"):
    input: str
