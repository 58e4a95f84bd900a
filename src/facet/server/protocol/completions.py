"""Wire types of /v1/completions."""

import msgspec

from facet.server.protocol.sampling_fields import Int, SamplingFields
from facet.server.protocol.shared import PromptLogprobs, Usage


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | Int | list[Int]] | None = None
    echo: bool | None = None
    logprobs: Int | None = None
    split_special_tokens: bool | None = None

    # Known but not supported.
    suffix: str | None = None
    best_of: Int | None = None

    @property
    def is_echo_only(self) -> bool:
        """Whether only the prompt is asked about."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are asked for: those of the answer, and of the prompt where that is echoed."""
        return self.logprobs is not None or bool(self.logprob_token_ids)


UNSUPPORTED_IN_COMPLETIONS = {"suffix": "Gemma cannot write towards a given ending. Put it into the prompt."}


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token. The first token of an echoed prompt has no probability.

    Offsets are places in the text of the choice, in characters. They never decrease: the bytes of one character have
    its place, and tokens that do not show have that of what follows them.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunkChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: str = "text_completion"
    system_fingerprint: None = None
    service_tier: None = None


class CompletionChunk(msgspec.Struct, omit_defaults=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    object: str
    usage: Usage | None = None
