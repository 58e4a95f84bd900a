"""Wire types of /v1/messages: what clients send and receive, and the events of a stream."""

from typing import Any, Literal

import msgspec

from facet.server.protocol.sampling_fields import ChatSettings, Int


class TextBlock(msgspec.Struct, tag_field="type", tag="text", frozen=True):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking", frozen=True):
    """A thought. It is not signed: whoever sends it back may have changed it, and it is read as text."""

    thinking: str
    signature: str | None = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use", frozen=True):
    id: str
    name: str
    input: msgspec.Raw  # an object, kept as it was written


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking", frozen=True):
    data: str = ""


class Base64Source(msgspec.Struct, tag_field="type", tag="base64", frozen=True):
    """A file in base64. What kind of file it is, its own bytes tell."""

    data: str


class UrlSource(msgspec.Struct, tag_field="type", tag="url", frozen=True):
    url: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image", frozen=True):
    source: Base64Source | UrlSource


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document", frozen=True):
    source: Any = None


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result", frozen=True):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | RedactedThinkingBlock | ImageBlock | DocumentBlock


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        return [TextBlock(self.content)] if isinstance(self.content, str) else self.content


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's own; those that Anthropic runs have another type."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    input_examples: list[Any] | None = None
    defer_loading: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """How the answer is to look. `effort` changes nothing: Gemma has one way of thinking."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountTokensRequest(ChatSettings, frozen=True, kw_only=True):
    """What a prompt is made of. Settings of an answer are taken and mean nothing."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    thinking: Thinking | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of output_config.format

    # Known but not supported.
    container: Any = None
    compaction: Any = None
    context_management: Any = None
    mcp_servers: list[Any] | None = None
    thread: Any = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    max_tokens: Int
    stop_sequences: list[str] | None = None
    stream: bool | None = None


UNSUPPORTED_FIELDS = {
    "compaction": "Shorten the conversation yourself.",
    "container": "Leave it out.",
    "context_management": "Shorten the conversation yourself.",
    "mcp_servers": "Offer their tools as tools.",
    "thread": "Send the whole conversation as messages.",
}


class TokenCount(msgspec.Struct):
    input_tokens: int


class OutputTokens(msgspec.Struct):
    thinking_tokens: int


class Usage(msgspec.Struct):
    """The tokens of a message. `input_tokens` are those that were not in the cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens
    cache_creation_input_tokens: int = 0


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct):
    id: str
    model: str
    content: list[OutputBlock]
    usage: Usage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class StopDelta(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: OutputBlock


class BlockGrowth(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: BlockDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: Usage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class ErrorDetails(msgspec.Struct):
    """Tells a client what to do about an error."""

    error_code: str


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    type: str
    message: str
    details: ErrorDetails | None = None


class ErrorEvent(msgspec.Struct, tag_field="type", tag="error"):
    """The body of a response that failed, and the last event of a stream that did."""

    error: ErrorDetail
