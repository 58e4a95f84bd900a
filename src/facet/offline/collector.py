"""Puts token answers together into outputs, one collector for each call of `generate`."""

from collections.abc import Sequence

from facet.engine.messages import Token
from facet.offline.outputs import CompletionOutput, RequestOutput, as_position
from facet.request import Request
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText


class Collector:
    """The answers of one call. A request id stands for one answer: a prompt with n answers is n requests."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._answers: dict[str, _Answer] = {}

    def expect(self, output: RequestOutput, requests: Sequence[Request]) -> None:
        for request, completion in zip(requests, output.outputs, strict=True):
            self._answers[request.request_id] = _Answer(request, output, completion, self._tokenizer)

    @property
    def pending_ids(self) -> list[str]:
        return [request_id for request_id, answer in self._answers.items() if not answer.completion.finished]

    def feed(self, token: Token) -> bool:
        """Take one answer of the engine. Whether the request must now be cancelled: its text ended before it did."""
        answer = self._answers.get(token.request_id)
        if answer is None or answer.completion.finished:
            return False
        return answer.feed(token)


class _Answer:
    def __init__(
        self, request: Request, output: RequestOutput, completion: CompletionOutput, tokenizer: Tokenizer | None
    ) -> None:
        self.completion = completion
        self._request = request
        self._output = output
        self._tokenizer = tokenizer
        sampling = request.sampling
        self._text = OutputText(tokenizer, sampling) if tokenizer is not None and sampling.detokenize else None
        if sampling.logprobs is not None:
            completion.logprobs, completion.cumulative_logprob = [], 0.0

    def feed(self, token: Token) -> bool:
        if (
            token.prompt_logprobs is not None
            and self._output.prompt_logprobs is not None
            and self.completion.index == 0
        ):
            self._output.prompt_logprobs += [as_position(entry, self._tokenizer) for entry in token.prompt_logprobs]
        self._output.num_cached_tokens = token.num_cached_tokens
        if token.token_id is not None:
            self._append(token)
        if self._text is not None and self._text.stop_string is not None:
            self.completion.finish_reason, self.completion.stop_reason = "stop", self._text.stop_string
            return token.finish_reason is None
        if token.finish_reason is not None:
            self._finish(token)
        return False

    def _append(self, token: Token) -> None:
        completion = self.completion
        assert token.token_id is not None
        completion.token_ids.append(token.token_id)
        if token.logprobs is not None and completion.logprobs is not None:
            completion.logprobs.append(as_position(token.logprobs, self._tokenizer))
            completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + token.logprobs.logprobs[0]
        # The token that ends an answer is part of its ids and not of its text.
        if self._text is not None and token.finish_reason != "stop":
            completion.text += self._text.push(token.token_id)

    def _finish(self, token: Token) -> None:
        if self._text is not None:
            self.completion.text += self._text.finish()
        self.completion.finish_reason, self.completion.error = token.finish_reason, token.error
        if self._text is not None and self._text.stop_string is not None:
            self.completion.finish_reason, self.completion.stop_reason = "stop", self._text.stop_string
        elif token.finish_reason == "stop" and token.token_id in self._request.sampling.stop_token_ids:
            self.completion.stop_reason = token.token_id
