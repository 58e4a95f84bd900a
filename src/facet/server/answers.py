"""What every answer has, whatever endpoint it is for: its tokens counted, its end, and why it ended."""

from dataclasses import dataclass, field

from facet.engine.messages import Token
from facet.sampling_params import SamplingParams
from facet.server.errors import HttpError
from facet.token_logprobs import TokenLogprobs


@dataclass(slots=True, kw_only=True)
class AnswerTokens:
    """The tokens of one answer. Complete once `finish_reason` is set."""

    sampling: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # the stop string, or the stop token that is not an end of sequence

    def take(self, token: Token) -> int | None:
        """Book one answer of the engine. The token whose text counts: the one that ends an answer has none."""
        if token.finish_reason in ("error", "abort"):
            raise HttpError(500, f"The answer failed: {token.error or 'it was ended early by the engine'}.")
        self.num_cached_tokens = token.num_cached_tokens
        if token.prompt_logprobs is not None:
            self.prompt_logprobs += token.prompt_logprobs
        if token.token_id is not None:
            self.token_ids.append(token.token_id)
        if token.logprobs is not None:
            self.logprobs.append(token.logprobs)
        self.finish_reason = token.finish_reason
        if token.finish_reason == "stop":
            if token.token_id in self.sampling.stop_token_ids:
                self.stop_reason = token.token_id
                return token.token_id if self.sampling.include_stop_str_in_output else None
            return None
        return token.token_id

    def stop_at(self, stop_string: str) -> None:
        self.finish_reason, self.stop_reason = "stop", stop_string
