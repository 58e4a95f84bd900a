"""Formats the answers of /v1/completions as their tokens arrive."""

from collections.abc import Sequence
from dataclasses import dataclass

from facet.engine.messages import Token
from facet.prompts import TextReader
from facet.sampling_params import SamplingParams
from facet.server.logprobs import LogprobShapes
from facet.server.protocol.completions import CompletionChoice, CompletionChunkChoice, CompletionLogprobs
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionForm:
    """How the answers of one HTTP request are to look."""

    num_top: int | None  # log-probabilities beside each token's own; None: none at all
    echo: bool
    echo_only: bool  # max_tokens 0: the prompt is asked about, and the one token computed is dropped
    return_token_ids: bool
    return_prompt_logprobs: bool
    shapes: LogprobShapes


class CompletionAnswer:
    """One answer. `prompt` is what echo repeats."""

    def __init__(
        self,
        index: int,
        prompt_text: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        form: CompletionForm,
        tokenizer: Tokenizer | None,
    ) -> None:
        # Where only the prompt is asked about, the text of the one token computed is not wanted.
        self._reader = TextReader(sampling, None if form.echo_only else tokenizer)
        self.tokens = self._reader.tokens
        self.prompt_token_ids = list(prompt_token_ids)
        self._index = index
        self._form = form
        self._prompt_text = prompt_text if form.echo else ""
        self._num_chars = len(self._prompt_text)
        self._offsets: list[int] = []
        self._num_sent_tokens = 0
        self._has_begun = False

    @property
    def is_finished(self) -> bool:
        return self.tokens.finish_reason is not None

    def feed(self, token: Token) -> str:
        """The text that became certain."""
        if token.token_id is not None:
            self._offsets.append(self._num_chars)
        text = self._reader.feed(token)
        self._num_chars += len(text)
        return text

    def chunk(self, text: str) -> CompletionChunkChoice | None:
        """An event of the stream; None where there is nothing to say yet."""
        form, tokens = self._form, self.tokens
        if not tokens.token_ids and not self.is_finished:
            return None  # only log-probabilities of the prompt so far
        is_first, self._has_begun = not self._has_begun, True
        if is_first:
            text = self._prompt_text + text
        elif not text and not self.is_finished and not form.return_token_ids and form.num_top is None:
            return None
        start, self._num_sent_tokens = self._num_sent_tokens, len(tokens.token_ids)
        logprobs = None
        if form.num_top is not None:
            logprobs = self._logprobs(form.num_top, start, with_prompt=form.echo and is_first)
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
            text=self._prompt_text + self._reader.text(),
            logprobs=None if form.num_top is None else self._logprobs(form.num_top, 0, with_prompt=form.echo),
            finish_reason="length" if form.echo_only else tokens.finish_reason,
            stop_reason=None if form.echo_only else tokens.stop_reason,
            prompt_logprobs=prompt_logprobs,
            token_ids=self._shown_ids(0) if form.return_token_ids else None,
            prompt_token_ids=self.prompt_token_ids if form.return_token_ids else None,
        )

    @property
    def num_tokens(self) -> int:
        return 0 if self._form.echo_only else len(self.tokens.token_ids)

    def _shown_ids(self, start: int) -> list[int]:
        return [] if self._form.echo_only else self.tokens.token_ids[start:]

    def _logprobs(self, num_top: int, start: int, *, with_prompt: bool) -> CompletionLogprobs:
        shapes, tokens = self._form.shapes, self.tokens
        entries: list[TokenLogprobs | int] = []
        offsets: list[int] = []
        if with_prompt:
            entries = [self.prompt_token_ids[0], *tokens.prompt_logprobs]
            position = 0
            for token_id in self.prompt_token_ids:
                offsets.append(position)
                position += len(shapes.text(token_id))
        if not self._form.echo_only:
            entries += tokens.logprobs[start:]
            offsets += self._offsets[start:]
        return shapes.completion(entries, offsets, num_top=num_top)
