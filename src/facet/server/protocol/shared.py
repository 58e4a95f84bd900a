"""Wire types that several endpoints respond with."""

import msgspec


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class PositionLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str | None


# By position of the prompt, then by token id. Nothing predicts the first token.
PromptLogprobs = list[dict[str, PositionLogprob] | None] | None


def make_usage(
    num_prompt_tokens: int, num_completion_tokens: int, num_cached_tokens: int, num_reasoning_tokens: int
) -> Usage:
    return Usage(
        num_prompt_tokens,
        num_prompt_tokens + num_completion_tokens,
        num_completion_tokens,
        CachedTokens(num_cached_tokens),
        ReasoningTokens(num_reasoning_tokens),
    )
