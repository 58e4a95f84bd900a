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


class CompletionTokens(msgspec.Struct, omit_defaults=True):
    """Details of an answer's tokens. Predictions are drafts; where there were none, nothing is said of them."""

    reasoning_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionTokens


class PositionLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str | None


# Log-probabilities by position of the prompt, then by token id. Nothing predicts the first token.
PromptLogprobs = list[dict[str, PositionLogprob] | None] | None


def make_usage(
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int,
    num_reasoning_tokens: int,
    num_media_tokens: Mapping[MediaKind, int] = NO_MEDIA,
    *,
    num_drafts: int,
    num_accepted: int,
) -> Usage:
    return Usage(
        num_prompt_tokens,
        num_prompt_tokens + num_completion_tokens,
        num_completion_tokens,
        PromptDetails.of(num_cached_tokens, num_media_tokens),
        CompletionTokens(num_reasoning_tokens, num_accepted, num_drafts - num_accepted),
    )
