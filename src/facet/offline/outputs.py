"""The results of `LLM.generate` and `LLM.chat`."""

from dataclasses import dataclass, field
from typing import Literal

from facet.chat.reply import Reply
from facet.request import FinishReason
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token's log-probability at a position, and how many tokens were at least as likely."""

    logprob: float
    rank: int
    decoded_token: str | None


Position = dict[int, Logprob]


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One answer. Complete once `finish_reason` is set."""

    index: int
    text: str = ""
    reply: Reply | None = None  # of `LLM.chat`: the text parsed into content, reasoning and tool calls
    token_ids: list[int] = field(default_factory=list)
    num_reasoning_tokens: int = 0  # how many of them are thoughts
    logprobs: list[Position] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | Literal["tool_calls"] | None = None
    error: str | None = None  # why, where finish_reason is "error": this answer failed, its neighbours did not
    # The stop string, the stop token if it is not an end of sequence, or "repetition".
    stop_reason: int | str | None = None
    lora_request: None = None  # under vLLM's name; that of the whole output says it

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Position | None] | None  # None for the first token, which nothing predicts
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    metrics: None = None  # under vLLM's name, with what its `LLM` puts there by default
    lora_request: object = None  # the one given; None: the answers are the model's own

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)


def as_position(logprobs: TokenLogprobs, tokenizer: Tokenizer | None) -> Position:
    """Log-probabilities by token id; the token itself first, then the likeliest."""
    columns = zip(logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True)
    position: Position = {}
    for token_id, logprob, rank in columns:
        text = None if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False)
        position.setdefault(token_id, Logprob(logprob=logprob, rank=rank, decoded_token=text))
    return position
