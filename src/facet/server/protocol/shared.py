"""Wire types that several endpoints respond with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import msgspec
from msgspec import UNSET, UnsetType

from facet.media_span import MediaKind

NO_MEDIA: Mapping[MediaKind, int] = MappingProxyType({})


class PromptDetails(msgspec.Struct):
    """What a prompt is made of. Kinds of media that it does not have are left out."""

    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    video_tokens: int | UnsetType = UNSET

    @classmethod
    def of(cls, num_cached_tokens: int, num_media_tokens: Mapping[MediaKind, int]) -> Self:
        return cls(num_cached_tokens, **{f"{kind}_tokens": count for kind, count in num_media_tokens.items()})


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: ReasoningTokens


class PositionLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str | None


# By position of the prompt, then by token id. Nothing predicts the first token.
PromptLogprobs = list[dict[str, PositionLogprob] | None] | None


def make_usage(
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int,
    num_reasoning_tokens: int,
    num_media_tokens: Mapping[MediaKind, int] = NO_MEDIA,
) -> Usage:
    return Usage(
        num_prompt_tokens,
        num_prompt_tokens + num_completion_tokens,
        num_completion_tokens,
        PromptDetails.of(num_cached_tokens, num_media_tokens),
        ReasoningTokens(num_reasoning_tokens),
    )
