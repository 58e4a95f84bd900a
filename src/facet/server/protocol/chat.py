"""Wire types of /v1/chat/completions."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from facet.errors import RequestError
from facet.server.protocol.sampling_fields import Int, SamplingFields
from facet.server.protocol.shared import PromptLogprobs, Usage


class Reasoning(msgspec.Struct, frozen=True):
    """The same as `thinking_token_budget` and `reasoning_effort`."""

    max_tokens: Int | None = None
    effort: str | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Messages and tools are checked by the chat room, which knows what they may hold."""

    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    echo: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None

    # Known but not supported.
    audio: dict[str, Any] | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None


def names_used(fields: ChatRequest) -> dict[str, str]:
    """The names that were sent in place of usual ones, of settings that have two, by the usual name."""
    names = {}
    if fields.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if fields.reasoning is not None and fields.thinking_token_budget is None:
        names["thinking_token_budget"] = "reasoning.max_tokens"
    if fields.reasoning is not None and fields.reasoning_effort is None:
        names["reasoning_effort"] = "reasoning.effort"
    return names


def check_end(*, continue_final_message: bool | None, add_generation_prompt: bool | None) -> None:
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "continue_final_message goes on with the last message and add_generation_prompt begins a new one. Set one "
            "of them.",
            field="continue_final_message",
        )


UNSUPPORTED_IN_CHAT = {
    "audio": "Only text is generated.",
    "web_search_options": "Offer a tool that searches.",
}


def reasoning_settings(fields: ChatRequest) -> Reasoning:
    """What was asked for under either name."""
    short = fields.reasoning or Reasoning()
    for name, value, other, its_value in (
        ("reasoning.max_tokens", short.max_tokens, "thinking_token_budget", fields.thinking_token_budget),
        ("reasoning.effort", short.effort, "reasoning_effort", fields.reasoning_effort),
    ):
        if value is not None and its_value is not None and value != its_value:
            raise RequestError(
                f"{name} is {value!r}, but {other} is {its_value!r}, and both mean the same. Send one of them.",
                field=name,
            )
    if short.max_tokens is not None and short.max_tokens < 0:
        raise RequestError(
            f"reasoning.max_tokens is {short.max_tokens}, but must be 0 (no thought) or more; leave it out to set no "
            "limit.",
            field="reasoning.max_tokens",
        )
    budget = fields.thinking_token_budget if short.max_tokens is None else short.max_tokens
    return Reasoning(budget, short.effort or fields.reasoning_effort)


class FunctionCall(msgspec.Struct):
    arguments: str
    name: str | None = None


class ToolCall(msgspec.Struct, tag_field="type", tag="function"):
    id: str
    function: FunctionCall


class CustomCall(msgspec.Struct):
    name: str
    input: str


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom"):
    id: str
    custom: CustomCall


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CustomDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    input: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """A part of a call of a function or of a custom tool."""

    index: int
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None
    id: str | None = None
    type: str | None = None


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ContentLogprob]


class ChatMessage(msgspec.Struct):
    """`reasoning` and `reasoning_content` are the same text: clients look for the one or the other."""

    content: str | None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall | CustomToolCall] = []
    refusal: None = None
    role: str = "assistant"


class LegacyChatMessage(ChatMessage):
    """The answer to a request with `functions`."""

    function_call: FunctionCall | None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatResponse(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs = None
    prompt_token_ids: list[int] | None = None
    object: str = "chat.completion"
    system_fingerprint: None = None
    service_tier: None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET  # left out where they were not asked for


class ChatFinalChoice(ChatChunkChoice):
    """The last of a choice also says which stop string or token it was."""

    stop_reason: int | str | None = None


class ChatChunk(msgspec.Struct, omit_defaults=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: str
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
