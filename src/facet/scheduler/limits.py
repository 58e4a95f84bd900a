"""The scheduler's limits, and the check that refuses requests beyond them."""

from dataclasses import dataclass

from facet.errors import CapacityError, ConfigError, RequestError
from facet.kv_cache.accountant import longest_request, need_of
from facet.kv_layout import KVLayout
from facet.media_span import longest_length, uncuttable
from facet.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_num_batched_tokens: int  # of prompts, computed in one step; each request that generates adds one
    max_num_seqs: int  # requests that run at once
    max_model_len: int  # prompt and output of one request
    max_num_drafts: int = 0  # of one request in one step; out of the budget of max_num_batched_tokens
    max_num_rows_ahead: int = 0  # of a step that is launched ahead of the tokens and drafts before it; 0: none is
    max_num_encoded_rows: int = 0  # that towers make in one step, unless a single item has more
    num_encoder_rows: int = 0  # of media, that the runner keeps
    heeds_priority: bool = True  # of requests; else they run in the order in which they arrive
    max_step_seconds: float | None = None  # that a step with prompts may take while others generate; None: any time

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be 1 or more.")


def max_num_tokens(request: Request, limits: Limits) -> int:
    """Prompt and output together may grow to this."""
    if request.sampling.max_tokens is None:
        return limits.max_model_len
    return min(len(request.prompt_token_ids) + request.sampling.max_tokens, limits.max_model_len)


def check_request(request: Request, limits: Limits, layout: KVLayout, num_blocks: int) -> None:
    """Refuses a request that could never run, with the numbers, instead of letting it wait for ever."""
    num_prompt, asked = len(request.prompt_token_ids), request.sampling.max_tokens
    if num_prompt == 0:
        raise RequestError("The prompt is empty. Give at least one token.", field="prompt")
    if num_prompt + (asked or 1) > limits.max_model_len:
        is_too_long = num_prompt >= limits.max_model_len
        # Clients know by the words "prompt is too long" and "maximum context length" that they have to send less.
        raise RequestError(
            f"The prompt {'is too long: it ' * is_too_long}has {num_prompt} tokens and {asked or 1} more were asked "
            f"for, but this model's maximum context length is {limits.max_model_len}. Shorten the prompt, lower "
            f"max_tokens, or start the server with --max-model-len {num_prompt + (asked or 1)}.",
            field="prompt" if is_too_long else "max_tokens",
        )
    num_tokens = max_num_tokens(request, limits) - 1  # the last token that is sampled is never computed
    need = need_of(layout, num_blocks, num_tokens=num_tokens)
    if not need.fits:
        raise CapacityError(
            f"The request may grow to {need.num_tokens + 1} tokens and then needs {need.num_blocks} cache blocks, but "
            f"there are {need.num_blocks_available}, enough for {longest_request(layout, num_blocks)} tokens. Shorten "
            "the prompt, lower max_tokens, or give the cache more memory."
        )
    largest = max((content.num_tokens for content in request.contents), default=0)
    if largest > limits.num_encoder_rows:
        raise RequestError(
            f"The request has media of {largest} tokens, but the encoder cache has room for {limits.num_encoder_rows}. "
            "Send something shorter or smaller, or start the server with --max-num-batched-tokens "
            f"{-(-largest // 2)}, which enlarges the cache.",
            field="media",
        )
    if spans := uncuttable(request.media):
        num_at_once = longest_length(spans)
        if num_at_once > limits.max_num_batched_tokens:
            raise RequestError(
                f"The request has a picture of {num_at_once} tokens, which must be computed in one step, but a step "
                f"computes {limits.max_num_batched_tokens}. Send a smaller picture, or start the server with "
                f"--max-num-batched-tokens {num_at_once}.",
                field="media",
            )
        need = need_of(layout, num_blocks, num_tokens=num_tokens, num_in_flight=num_at_once)
        if not need.fits:
            raise CapacityError(
                f"The request has a picture of {num_at_once} tokens, which must be computed in one step, and then "
                f"needs {need.num_blocks} cache blocks, but there are {need.num_blocks_available}. Send a smaller "
                "picture, or give the cache more memory."
            )
