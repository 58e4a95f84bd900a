"""Collects the engine's tokens into outputs, for one call of `generate` or `chat`."""

from facet.engine.messages import NewTokens
from facet.offline.outputs import CompletionOutput, RequestOutput, as_position
from facet.prompts import AnswerTokens, PreparedQuestion, ReplyReader, TextReader
from facet.request import Request
from facet.tokens import Tokenizer

_REPLACEMENT_CHARACTER = "\ufffd"  # in decoded text, of half a one


class Collector:
    """The answers of one call. A request id stands for one answer: a question with n answers is n requests."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._pending: dict[str, _Answer] = {}

    def expect(self, prepared: PreparedQuestion, lora_request: object = None) -> RequestOutput:
        """An output that is complete once its requests have ended."""
        first = prepared.requests[0]
        output = RequestOutput(
            request_id=first.request_id,
            prompt=prepared.prompt_text,
            prompt_token_ids=list(prepared.prompt_token_ids),
            prompt_logprobs=None if first.sampling.prompt_logprobs is None else [None],
            outputs=[CompletionOutput(index=index) for index in range(len(prepared.requests))],
            lora_request=lora_request,
        )
        for request, completion in zip(prepared.requests, output.outputs, strict=True):
            reader = _make_reader(request, prepared, self._tokenizer)
            self._pending[request.request_id] = _Answer(reader, output, completion, self._tokenizer)
        return output

    @property
    def pending_ids(self) -> list[str]:
        return list(self._pending)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def awaits(self, request_id: str) -> bool:
        return request_id in self._pending

    def feed(self, new: NewTokens) -> bool:
        """Take what a step brought. Whether the request must now be cancelled: its text ended before it did."""
        answer = self._pending.get(new.request_id)
        if answer is None:
            return False
        answer.reader.feed(new)
        if answer.reader.tokens.finish_reason is None:
            return False
        del self._pending[new.request_id]
        answer.complete()
        return new.finish_reason is None


def _make_reader(request: Request, prepared: PreparedQuestion, tokenizer: Tokenizer | None) -> TextReader | ReplyReader:
    if tokenizer is None or not request.sampling.detokenize:
        return TextReader(request, None)
    if prepared.reply_format is None:
        return TextReader(request, tokenizer)
    return ReplyReader(request, tokenizer, prepared.reply_format)


class _Answer:
    """One answer, and the places it is written to when it has ended."""

    def __init__(
        self,
        reader: TextReader | ReplyReader,
        output: RequestOutput,
        completion: CompletionOutput,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.reader = reader
        self._output = output
        self._completion = completion
        self._tokenizer = tokenizer

    def complete(self) -> None:
        reader, tokens, completion = self.reader, self.reader.tokens, self._completion
        completion.token_ids = tokens.token_ids
        completion.num_reasoning_tokens = tokens.num_reasoning_tokens
        completion.finish_reason = reader.finish_reason
        completion.stop_reason, completion.error = tokens.stop_reason, tokens.error
        if isinstance(reader, TextReader):
            completion.text = reader.text()
        else:
            assert self._tokenizer is not None, "a reply was read, so there is a tokenizer"
            completion.text, completion.reply = _raw_text(tokens, self._tokenizer), reader.reply()
        if tokens.sampling.logprobs is not None:
            completion.logprobs = [as_position(entry, self._tokenizer) for entry in tokens.logprobs]
            completion.cumulative_logprob = sum((entry.logprobs[0] for entry in tokens.logprobs), 0.0)
        if completion.index == 0:  # others find what the first has computed
            self._output.num_cached_tokens = tokens.num_cached_tokens
        if self._output.prompt_logprobs is not None:  # computed with the first answer alone
            self._output.prompt_logprobs += [as_position(entry, self._tokenizer) for entry in tokens.prompt_logprobs]


def _raw_text(tokens: AnswerTokens, tokenizer: Tokenizer) -> str:
    """What the model wrote, before it was parsed. It ends where the reply does."""
    skips = tokens.sampling.skip_special_tokens
    text = tokenizer.decode(tokens.text_token_ids, skip_special_tokens=skips)
    stop = tokens.stop_string
    if stop is None:
        return text
    # The last token completed it, and may hold it again behind that: "\n\n" where the stop string is "\n".
    before = tokenizer.decode(tokens.text_token_ids[:-1], skip_special_tokens=skips).rstrip(_REPLACEMENT_CHARACTER)
    start = text.find(stop, max(0, len(before) + 1 - len(stop)))
    if start < 0:  # what completed it in the reply stands apart here
        return text
    return text[: start + len(stop) if tokens.sampling.include_stop_str_in_output else start]
