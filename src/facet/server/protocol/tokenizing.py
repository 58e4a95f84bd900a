"""Wire types of /tokenize, /detokenize and /v1/models."""

from typing import Any

import msgspec

from facet.server.protocol.sampling_fields import Int


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_special_tokens: bool | None = None
    split_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class MediaTokenCount(msgspec.Struct):
    kind: str  # "image", "audio" or "video"
    num_tokens: int  # soft tokens, all frames and crops together


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    media: list[MediaTokenCount]  # one for each picture, sound and video in the messages, in their order


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[Int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "facet"
    parent: str | None = None  # of an adapter: the model that it changes


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"
