"""Turns the engine's tokens into answers: the text or the reply, and why it ended.

A reader belongs to one answer. If the text ends an answer, the engine does not know it yet, and the caller cancels the
request.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from facet.chat.deltas import Delta, ReasoningDelta, ToolCallStart
from facet.chat.replies import make_reply_parser
from facet.chat.reply import Reply, ReplyBuilder
from facet.engine.messages import NewTokens
from facet.request import FinishReason, Request
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtCounter
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText
from facet.tokens.text_offsets import TextOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How to read the reply to a conversation."""

    offers_tools: bool
    starts_in_thought: bool  # the prompt leaves a thought open
    ends_after_one_call: bool  # parallel_tool_calls is false
    custom_tools: frozenset[str] = frozenset()  # names of tools that take text
    tool_names: frozenset[str] = frozenset()  # of those that may be called
    calls_come_first: bool = False  # where calls have no tokens of their own: none follows a text


@dataclass(slots=True)
class AnswerTokens:
    """The tokens of one answer. Complete once `finish_reason` is set."""

    sampling: SamplingParams
    thoughts: ThoughtCounter | None = None  # None: the model has none
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_drafts: int = 0  # that were computed for it
    num_accepted: int = 0  # of these, and part of the answer
    finish_reason: FinishReason | None = None
    # The stop string, the stop token if it is not an end of sequence, or "repetition".
    stop_reason: int | str | None = None
    stop_string: str | None = None
    is_loop: bool = False  # ended because it repeated itself
    error: str | None = None  # why, where finish_reason is "error"

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self.thoughts is None else self.thoughts.count

    @property
    def text_token_ids(self) -> list[int]:
        """The tokens whose text counts: the one that ends an answer has none, unless it was asked for."""
        has_end = self.finish_reason == "stop" and not isinstance(self.stop_reason, str)
        is_hidden = has_end and (self.stop_reason is None or not self.sampling.include_stop_str_in_output)
        return self.token_ids[:-1] if is_hidden else self.token_ids

    @classmethod
    def of(cls, request: Request) -> "AnswerTokens":
        return cls(request.sampling, None if request.thought is None else ThoughtCounter(request.thought))

    def take(self, new: NewTokens) -> Iterator[int]:
        """Records what a step brought, token by token, and yields each token whose text counts.

        If that text ends the answer, that is, if `finish_reason` is set meanwhile, the tokens behind it are dropped.
        """
        self.num_cached_tokens = new.num_cached_tokens
        self.num_drafts += new.num_drafts
        if new.prompt_logprobs is not None:
            self.prompt_logprobs += new.prompt_logprobs
        last = len(new.token_ids) - 1
        for index, token_id in enumerate(new.token_ids):
            self.token_ids.append(token_id)
            if new.num_drafts and index < last:
                self.num_accepted += 1
            if self.thoughts is not None:
                self.thoughts.push(token_id)
            if new.logprobs is not None:
                self.logprobs.append(new.logprobs[index])
            has_text = index < last or new.finish_reason != "stop"
            if not has_text and token_id in self.sampling.stop_token_ids:
                self.stop_reason = token_id
                has_text = self.sampling.include_stop_str_in_output
            if has_text:
                yield token_id
                if self.finish_reason is not None:
                    return
        self.finish_reason, self.error = new.finish_reason, new.error
        if new.finish_reason == "repetition":
            self.finish_reason, self.stop_reason, self.is_loop = "stop", "repetition", True

    def stop_at(self, stop_string: str) -> None:
        self.finish_reason, self.stop_reason, self.stop_string = "stop", stop_string, stop_string
        self.is_loop = False


class TextReader:
    """An answer that is text, or token ids alone where there is no tokenizer."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        sampling = request.sampling
        self.tokens = AnswerTokens.of(request)
        self._output = None if tokenizer is None else OutputText(tokenizer, sampling)
        self._parts: list[str] = []
        self._offsets: TextOffsets | None = None
        if tokenizer is not None and sampling.logprobs is not None:
            self._offsets = TextOffsets(tokenizer, skip_special_tokens=sampling.skip_special_tokens)
        # Where each token begins in the text, if log-probabilities were asked for. Tokens of a stop string that is left
        # out of the text have the offsets that they would have there.
        self.offsets: list[int] = []

    def feed(self, new: NewTokens) -> str:
        """The text that became certain."""
        tokens, output, offsets = self.tokens, self._output, self._offsets
        start = len(self._parts)
        for token_id in tokens.take(new):
            self.offsets.append(0 if offsets is None else offsets.push(token_id))
            if output is not None:
                self._parts.append(output.push(token_id))
                if output.stop_string is not None:
                    tokens.stop_at(output.stop_string)
        if len(self.offsets) < len(tokens.token_ids):
            self.offsets.append(0 if offsets is None else offsets.end)  # of a token without text
        if output is not None and tokens.finish_reason is not None and output.stop_string is None:
            self._finish(output)
        return "".join(self._parts[start:])

    def _finish(self, output: OutputText) -> None:
        self._parts.append(output.finish())
        if output.stop_string is not None:
            self.tokens.stop_at(output.stop_string)

    def text(self) -> str:
        """The text as far as it has come."""
        return "".join(self._parts)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.tokens.finish_reason


class ReplyReader:
    """An answer that is a reply: content, thoughts and calls."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        reply_format: ReplyFormat,
        *,
        keeps_thoughts: bool = True,
    ) -> None:
        self.tokens = AnswerTokens.of(request)
        self._parser = make_reply_parser(
            tokenizer,
            request.sampling,
            tools_enabled=reply_format.offers_tools,
            tool_names=reply_format.tool_names,
            calls_come_first=reply_format.calls_come_first,
            starts_in_thought=reply_format.starts_in_thought,
        )
        self._builder = ReplyBuilder()
        self._ends_after_one_call = reply_format.ends_after_one_call
        self.custom_tools = reply_format.custom_tools
        self._keeps_thoughts = keeps_thoughts

    def feed(self, new: NewTokens) -> list[Delta]:
        """What became certain of the reply."""
        tokens, parser = self.tokens, self._parser
        kept: list[Delta] = []
        is_over = False
        for token_id in tokens.take(new):
            if deltas := parser.push(token_id):
                kept += self._keep(deltas)
            if parser.stop_string is not None:
                tokens.stop_at(parser.stop_string)
            is_over = tokens.finish_reason is not None
        if tokens.finish_reason is not None and not is_over:
            kept += self._keep(parser.finish(is_complete=new.finish_reason == "stop"))
            if parser.stop_string is not None:
                tokens.stop_at(parser.stop_string)
        return kept

    def reply(self) -> Reply:
        """The reply as far as it has come."""
        return self._builder.reply()

    @property
    def finish_reason(self) -> FinishReason | Literal["tool_calls"] | None:
        reason = self.tokens.finish_reason
        # A call that was cut off, by length or inside a string, or one of an endless row, is no call to carry out.
        is_meant = reason == "stop" and not self.tokens.is_loop
        return "tool_calls" if is_meant and self._builder.has_whole_call else reason

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
