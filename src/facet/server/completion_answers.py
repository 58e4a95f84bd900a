"""Formats the answers of /v1/completions as their tokens arrive."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from facet.engine.messages import NewTokens
from facet.prompts import TextReader
from facet.request import Request
from facet.server.dialect import OPENAI
from facet.server.echo import Echo
from facet.server.errors import Fault
from facet.server.logprobs import LogprobShapes
from facet.server.protocol.completions import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from facet.server.protocol.shared import Usage, make_usage
from facet.server.served_model import ServedModel
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionForm:
    """How the answers of one HTTP request are to look."""

    num_others: int | None  # log-probabilities beside each token's own; None: none at all
    echo: bool
    echo_only: bool  # max_tokens 0: the prompt is asked about, and the one token computed is dropped
    return_token_ids: bool
    return_prompt_logprobs: bool
    shapes: LogprobShapes

    @classmethod
    def of(cls, fields: CompletionRequest, model: ServedModel) -> "CompletionForm":
        return cls(
            num_others=len(fields.logprob_token_ids) if fields.logprob_token_ids else fields.logprobs,
            echo=bool(fields.echo),
            echo_only=fields.is_echo_only,
            return_token_ids=bool(fields.return_token_ids) or model.asked.tokenizer is None,
            return_prompt_logprobs=fields.prompt_logprobs is not None,
            shapes=model.logprob_shapes(fields.return_tokens_as_token_ids),
        )


class CompletionExchange:
    """The answers to one HTTP request: `n` to each prompt, those of one prompt together."""

    def __init__(
        self,
        response_id: str,
        fields: CompletionRequest,
        requests: Sequence[Request],
        echoes: Sequence[Echo],
        model: ServedModel,
        *,
        n: int,
        always_ends_with_usage: bool,
    ) -> None:
        """`echoes` are the prompts of the requests, where these are to be repeated."""
        self.dialect = OPENAI
        self.response_id = response_id
        self._fields = fields
        self._n = n
        self._created, self._model_name = int(time.time()), model.name
        self._always_has_usage = fields.wants_usage_always
        self._ends_with_usage = fields.wants_usage_at_end or always_ends_with_usage
        tokenizer = model.asked.tokenizer
        form = CompletionForm.of(fields, model)
        self.answers: Sequence[CompletionAnswer] = [
            CompletionAnswer(index, request, echo, form, tokenizer)
            for index, (request, echo) in enumerate(zip(requests, echoes, strict=True))
        ]

    def response(self) -> CompletionResponse:
        for index, answer in enumerate(self.answers):
            if not self._fields.echo:
                answer.tokens.prompt_logprobs = self.answers[index - index % self._n].tokens.prompt_logprobs
        choices = [answer.choice() for answer in self.answers]
        return CompletionResponse(self.response_id, self._created, self._model_name, choices, self._usage())

    def opening(self) -> list[msgspec.Struct]:
        return []

    def chunks(self, answer: "CompletionAnswer", new: NewTokens) -> list[msgspec.Struct]:
        choice = answer.chunk(answer.feed(new))
        if choice is None:
            return []
        return [self._chunk([choice], has_usage=self._always_has_usage)]

    def closing(self) -> list[msgspec.Struct]:
        return [self._chunk([], has_usage=True)] if self._ends_with_usage else []

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self.dialect.error_body(fault)]

    def _chunk(self, choices: list[CompletionChunkChoice], *, has_usage: bool) -> CompletionChunk:
        usage = self._usage() if has_usage else None
        return CompletionChunk(self.response_id, self._created, self._model_name, choices, "text_completion", usage)

    def _usage(self) -> Usage:
        firsts = self.answers[:: self._n]  # a prompt counts once, however many answers it has
        return make_usage(
            sum(len(answer.prompt_token_ids) for answer in firsts),
            sum(answer.num_tokens for answer in self.answers),
            sum(answer.tokens.num_cached_tokens for answer in firsts),
            sum(answer.num_reasoning_tokens for answer in self.answers),
            num_drafts=sum(answer.tokens.num_drafts for answer in self.answers),
            num_accepted=sum(answer.tokens.num_accepted for answer in self.answers),
        )


class CompletionAnswer:
    """One answer. `echo` is the prompt, where that is to be repeated."""

    def __init__(
        self, index: int, request: Request, echo: Echo, form: CompletionForm, tokenizer: Tokenizer | None
    ) -> None:
        # Where only the prompt is asked about, the text of the one token computed is not wanted.
        self._reader = TextReader(request, None if form.echo_only else tokenizer)
        self.tokens = self._reader.tokens
        self.feed = self._reader.feed
        self.prompt_token_ids = list(request.prompt_token_ids)
        self._index = index
        self._form = form
        self._echo = echo
        self._num_sent_tokens = 0
        self._has_begun = False

    def chunk(self, text: str) -> CompletionChunkChoice | None:
        """An event of the stream; None where there is nothing to say yet."""
        form, tokens = self._form, self.tokens
        is_open = tokens.finish_reason is None
        if not tokens.token_ids and is_open:
            return None  # only log-probabilities of the prompt so far
        is_first, self._has_begun = not self._has_begun, True
        if is_first:
            text = self._echo.text + text
        elif not text and is_open and not form.return_token_ids and form.num_others is None:
            return None
        start, self._num_sent_tokens = self._num_sent_tokens, len(tokens.token_ids)
        logprobs = None
        if form.num_others is not None:
            logprobs = self._logprobs(form.num_others, start, with_prompt=form.echo and is_first)
        return CompletionChunkChoice(
            index=self._index,
            text=text,
            logprobs=logprobs,
            finish_reason="length" if form.echo_only else tokens.finish_reason,
            stop_reason=None if form.echo_only else tokens.stop_reason,
            token_ids=self._shown_ids(start) if form.return_token_ids else None,
            prompt_token_ids=self.prompt_token_ids if form.return_token_ids and is_first else None,
        )

    def choice(self) -> CompletionChoice:
        """The whole answer."""
        form, tokens = self._form, self.tokens
        prompt_logprobs = None
        if form.return_prompt_logprobs:
            prompt_logprobs = [None, *(form.shapes.prompt_position(entry) for entry in tokens.prompt_logprobs)]
        return CompletionChoice(
            index=self._index,
            text=self._echo.text + self._reader.text(),
            logprobs=None if form.num_others is None else self._logprobs(form.num_others, 0, with_prompt=form.echo),
            finish_reason="length" if form.echo_only else tokens.finish_reason,
            stop_reason=None if form.echo_only else tokens.stop_reason,
            prompt_logprobs=prompt_logprobs,
            token_ids=self._shown_ids(0) if form.return_token_ids else None,
            prompt_token_ids=self.prompt_token_ids if form.return_token_ids else None,
        )

    @property
    def num_tokens(self) -> int:
        return 0 if self._form.echo_only else len(self.tokens.token_ids)

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._form.echo_only else self.tokens.num_reasoning_tokens

    def _shown_ids(self, start: int) -> list[int]:
        return [] if self._form.echo_only else self.tokens.token_ids[start:]

    def _logprobs(self, num_others: int, start: int, *, with_prompt: bool) -> CompletionLogprobs:
        shapes, tokens = self._form.shapes, self.tokens
        entries: list[TokenLogprobs | int] = []
        offsets: list[int] = []
        if with_prompt:
            entries = [self.prompt_token_ids[0], *tokens.prompt_logprobs]
            offsets += self._echo.offsets
        if not self._form.echo_only:
            entries += tokens.logprobs[start:]
            offsets += [len(self._echo.text) + offset for offset in self._reader.offsets[start:]]
        return shapes.completion(entries, offsets, num_others=num_others)
