"""Wire types of /v1/responses: what clients send and receive. The events of a stream are in events.py."""

from typing import Any, Literal

import msgspec

from facet.server.protocol.sampling_fields import ChatSettings, Int
from facet.server.protocol.shared import PromptDetails

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputText(msgspec.Struct, tag_field="type", tag="input_text", frozen=True):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", frozen=True):
    text: str
    annotations: list[Any] | None = []
    logprobs: list[Any] | None = []


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", frozen=True):
    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", frozen=True):
    image_url: str | None = None
    detail: str | None = None
    file_id: Any = None


class InputFile(msgspec.Struct, tag_field="type", tag="input_file", frozen=True):
    """Pictures, sound and video are read; what kind a file is, its own bytes tell."""

    file_data: str | None = None  # a data URL, or base64 alone
    file_id: Any = None


class AudioData(msgspec.Struct, frozen=True):
    data: str  # in base64


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio", frozen=True):
    input_audio: AudioData


Content = InputText | OutputText | Refusal | InputImage | InputFile | InputAudio


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", frozen=True):
    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", frozen=True):
    text: str


class InputMessage(msgspec.Struct, tag_field="type", tag="message", frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Content]


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call", frozen=True):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output", frozen=True):
    call_id: str
    output: str | list[InputText | InputImage | InputFile | InputAudio]


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call", frozen=True):
    call_id: str
    name: str
    input: str
    id: str | None = None
    status: str | None = None


class CustomToolCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call_output", frozen=True):
    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", frozen=True):
    """A thought. Nothing summarizes it: its text is its content."""

    id: str | None = None
    summary: list[SummaryText] | None = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class ItemReference(msgspec.Struct, tag_field="type", tag="item_reference", frozen=True):
    id: str


InputItem = (
    InputMessage
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | ReasoningItem
    | ItemReference
)


class OutputMessage(msgspec.Struct, tag_field="type", tag="message", frozen=True):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


OutputItem = OutputMessage | FunctionCall | CustomToolCall | ReasoningItem


class Reasoning(msgspec.Struct, frozen=True):
    """`max_tokens` is an addition of Facet's. A `summary` is never written: thoughts are returned whole."""

    effort: str | None = None
    summary: str | None = None
    max_tokens: Int | None = None


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextSettings(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(ChatSettings, frozen=True, kw_only=True):
    """Items of the input are decoded one by one: messages among them need not say that they are messages."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    text: TextSettings | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    include: list[str] | None = None
    include_reasoning: bool | None = None

    # Known but not supported.
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    top_logprobs: Int | None = None


UNSUPPORTED_FIELDS = {
    "conversation": "Use previous_response_id, or send the whole conversation as input.",
    "prompt": "Send its text as instructions and input.",
    "context_management": "Shorten the input yourself.",
    "moderation": "Leave it out.",
    "top_logprobs": "Ask /v1/chat/completions for log-probabilities.",
}


class InputDetails(PromptDetails):
    cache_write_tokens: int = 0


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputItem]
    usage: Usage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    reasoning: Reasoning
    background: bool
    store: bool
    temperature: float
    top_p: float
    text: TextSettings
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    truncation: str = "disabled"
    user: str | None = None
    object: Literal["response"] = "response"


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
