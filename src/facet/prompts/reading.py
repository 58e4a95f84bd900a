"""Turns the engine's tokens into answers: the text or the reply, and why it ended.

A reader belongs to one answer. If the text ends an answer, the engine does not know it yet, and the caller cancels the
request.
"""

from dataclasses import dataclass, field
from typing import Literal

from facet.chat.deltas import Delta, ReasoningDelta, ToolCallStart
from facet.chat.replies import make_reply_parser
from facet.chat.reply import Reply, ReplyBuilder
from facet.engine.messages import Token
from facet.request import FinishReason
from facet.sampling_params import SamplingParams
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How to read the reply to a conversation."""

    offers_tools: bool
    starts_in_thought: bool  # the prompt leaves a thought open
    ends_after_one_call: bool  # parallel_tool_calls is false


@dataclass(slots=True)
class AnswerTokens:
    """The tokens of one answer. Complete once `finish_reason` is set."""

    sampling: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string, or the stop token that is not an end of sequence
    error: str | None = None  # why, where finish_reason is "error"

    @property
    def text_token_ids(self) -> list[int]:
        """The tokens whose text counts: the one that ends an answer has none, unless it was asked for."""
        has_end = self.finish_reason == "stop" and not isinstance(self.stop_reason, str)
        is_hidden = has_end and (self.stop_reason is None or not self.sampling.include_stop_str_in_output)
        return self.token_ids[:-1] if is_hidden else self.token_ids

    def take(self, token: Token) -> int | None:
        """Records what a step brought. Returns its token if its text counts."""
        self.num_cached_tokens = token.num_cached_tokens
        if token.prompt_logprobs is not None:
            self.prompt_logprobs += token.prompt_logprobs
        if token.token_id is not None:
            self.token_ids.append(token.token_id)
        if token.logprobs is not None:
            self.logprobs.append(token.logprobs)
        if token.finish_reason is None:
            return token.token_id
        self.finish_reason, self.error = token.finish_reason, token.error
        if token.finish_reason == "stop":
            if token.token_id in self.sampling.stop_token_ids:
                self.stop_reason = token.token_id
                return token.token_id if self.sampling.include_stop_str_in_output else None
            return None
        return token.token_id

    def stop_at(self, stop_string: str) -> None:
        self.finish_reason, self.stop_reason = "stop", stop_string


class TextReader:
    """An answer that is text, or token ids alone where there is no tokenizer."""

    def __init__(self, sampling: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self.tokens = AnswerTokens(sampling)
        self._output = None if tokenizer is None else OutputText(tokenizer, sampling)
        self._parts: list[str] = []

    def feed(self, token: Token) -> str:
        """The text that became certain."""
        token_id = self.tokens.take(token)
        output = self._output
        if output is None:
            return ""
        part = "" if token_id is None else output.push(token_id)
        if output.stop_string is None and self.tokens.finish_reason is not None:
            part += output.finish()
        if output.stop_string is not None:
            self.tokens.stop_at(output.stop_string)
        self._parts.append(part)
        return part

    def text(self) -> str:
        """As far as it has come."""
        return "".join(self._parts)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.tokens.finish_reason


class ReplyReader:
    """An answer that is a reply: content, thoughts and calls."""

    def __init__(
        self,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        reply_format: ReplyFormat,
        *,
        keeps_thoughts: bool = True,
    ) -> None:
        self.tokens = AnswerTokens(sampling)
        self._parser = make_reply_parser(
            tokenizer,
            sampling,
            tools_enabled=reply_format.offers_tools,
            starts_in_thought=reply_format.starts_in_thought,
        )
        self._builder = ReplyBuilder()
        self._ends_after_one_call = reply_format.ends_after_one_call
        self._keeps_thoughts = keeps_thoughts

    def feed(self, token: Token) -> list[Delta]:
        """What became certain of the reply."""
        token_id = self.tokens.take(token)
        deltas = [] if token_id is None else self._parser.push(token_id)
        if self._parser.stop_string is None and self.tokens.finish_reason is not None:
            deltas += self._parser.finish(is_complete=self.tokens.finish_reason == "stop")
        if self._parser.stop_string is not None:
            self.tokens.stop_at(self._parser.stop_string)
        return self._keep(deltas) if deltas else deltas

    def reply(self) -> Reply:
        """As far as it has come."""
        return self._builder.reply()

    @property
    def finish_reason(self) -> FinishReason | Literal["tool_calls"] | None:
        reason = self.tokens.finish_reason
        # A call that was cut off by length is no call to carry out.
        return "tool_calls" if reason == "stop" and self._builder.num_calls else reason

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        kept: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ReasoningDelta) and not self._keeps_thoughts:
                continue
            if isinstance(delta, ToolCallStart) and self._ends_after_one_call and self._builder.num_calls:
                self.tokens.finish_reason = "stop"  # the answer ends where a second call would begin
                break
            self._builder.add(delta)
            kept.append(delta)
        return kept
