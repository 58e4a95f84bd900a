"""Wire types of /api/chat, /api/generate, /api/tags, /api/ps, /api/show and /api/version."""

from typing import Any, Literal

import msgspec

from facet.server.protocol.sampling_fields import Int


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw  # an object, kept as it was written


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    function: Function
    id: str | None = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message. The result of a tool names the tool, or the call."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    images: list[str] | None = None  # in base64; sound and video, too


class Options(msgspec.Struct, frozen=True):
    """Options that say how a model is loaded (`num_ctx`, `num_gpu`, ...) are not here: it is loaded already."""

    temperature: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    num_predict: Int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    # Known but not supported, beside the values at which they do nothing.
    repeat_last_n: Int | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Int | None = None


class CommonRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    stream: bool | None = None

    # Known but not supported.
    logprobs: bool | None = None
    top_logprobs: Int | None = None


class OllamaChatRequest(CommonRequest, frozen=True, kw_only=True):
    messages: list[InputMessage] = []
    tools: list[Any] | None = None


class GenerateRequest(CommonRequest, frozen=True, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None  # in base64; sound and video, too

    # Known but not supported.
    suffix: str | None = None
    template: str | None = None
    context: list[Any] | None = None


UNSUPPORTED_FIELDS = {
    "logprobs": "Ask /v1/chat/completions for log-probabilities.",
    "top_logprobs": "Ask /v1/chat/completions for log-probabilities.",
}
UNSUPPORTED_IN_GENERATE = {
    "suffix": "Gemma cannot write towards a given ending. Put it into the prompt.",
    "template": "Start the server with --chat-template, or send a whole prompt with raw.",
    "context": "Send the conversation to /api/chat.",
}


class ShowRequest(msgspec.Struct, frozen=True):
    model: str | None = None
    name: str | None = None


class OutputMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[ToolCall] = []


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of a stream, or the whole answer. What follows `done` stands in the last line; durations are in ns."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ChatLine(Line, kw_only=True):
    message: OutputMessage


class GenerateLine(Line, kw_only=True, omit_defaults=True):
    response: str
    thinking: str | None = None


class Details(msgspec.Struct):
    format: str
    family: str = "gemma"
    families: tuple[str, ...] = ("gemma",)
    parent_model: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class Tag(msgspec.Struct):
    name: str
    model: str
    modified_at: str
    digest: str  # of the name: files are not hashed
    details: Details
    size: int  # bytes of the weights


class TagList(msgspec.Struct):
    models: list[Tag]


class RunningModel(msgspec.Struct):
    name: str
    model: str
    size: int  # bytes of weights and cache
    digest: str
    details: Details
    expires_at: str
    size_vram: int  # how many of those are on a GPU
    context_length: int


class RunningList(msgspec.Struct):
    models: list[RunningModel]


class ModelDescription(msgspec.Struct):
    details: Details
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str
    template: str = ""
    parameters: str = ""
    modelfile: str = ""


class Version(msgspec.Struct):
    version: str


class ErrorLine(msgspec.Struct):
    error: str
