"""Formats what was said: the whole of it, or as events of a stream."""

import math
from collections.abc import Sequence

import msgspec

from facet.engine.messages import NewTokens
from facet.prompts import PreparedQuestion, ReplyReader
from facet.server.dialect import OPENAI
from facet.server.errors import Fault
from facet.server.served_model import ServedModel
from facet.server.transcriptions.clips import ClipAnswer, JoinedWords, MarkedWords, PlainWords
from facet.server.transcriptions.wire import (
    DurationUsage,
    InputDetails,
    TextDelta,
    TextDone,
    TokenUsage,
    Transcription,
    VerboseTranscription,
)


class TranscriptionExchange:
    """The answers about all clips of one sound, each to its own request.

    They come side by side. What is said of a clip waits until everything before it was said.
    """

    def __init__(
        self,
        response_id: str,
        clips: Sequence[tuple[PreparedQuestion, float]],
        model: ServedModel,
        *,
        task: str,
        language: str | None,
        mark: str | None,
        is_verbose: bool,
    ) -> None:
        """`clips`, and where each ends, in seconds. `mark`: what the words stand behind, if not all are wanted."""
        self.dialect = OPENAI
        self.response_id = response_id
        self._task, self._language, self._is_verbose = task, language, is_verbose
        tokenizer = model.asked.require_tokenizer()
        self._prepared = [prepared for prepared, _ in clips]
        answers = []
        for prepared, end in clips:
            assert prepared.reply_format is not None, "a chat is answered with a reply"
            reader = ReplyReader(prepared.requests[0], tokenizer, prepared.reply_format, keeps_thoughts=False)
            answers.append(ClipAnswer(reader, PlainWords() if mark is None else MarkedWords(mark), end))
        self.answers: Sequence[ClipAnswer] = answers
        self._joined = JoinedWords()
        self._num_ended = 0

    @property
    def text(self) -> str:
        """The text as far as it has come."""
        return self._joined.text

    def response(self) -> Transcription | VerboseTranscription:
        self._new_words()
        if not self._is_verbose:
            return Transcription(self.text, self._usage())
        seconds = self.answers[-1].end
        language = (self._language or "unknown").lower()
        usage = DurationUsage(math.ceil(seconds))
        return VerboseTranscription(self._task, language, round(seconds, 3), self.text, usage)

    def opening(self) -> list[msgspec.Struct]:
        return []

    def chunks(self, answer: ClipAnswer, new: NewTokens) -> list[msgspec.Struct]:
        answer.feed(new)
        words = self._new_words()
        return [TextDelta(words)] if words else []

    def closing(self) -> list[msgspec.Struct]:
        return [TextDone(self.text, self._usage())]

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        return [self.dialect.error_body(fault)]

    def _new_words(self) -> str:
        """What can be said now: of the first clip that has not ended, and of those before it."""
        words = ""
        for answer in self.answers[self._num_ended :]:
            words += self._joined.add(answer.take())
            if answer.tokens.finish_reason is None:
                break
            self._joined.end_clip()
            self._num_ended += 1
        return words

    def _usage(self) -> TokenUsage:
        num_input = sum(len(prepared.prompt_token_ids) for prepared in self._prepared)
        num_audio = sum(prepared.num_media_tokens["audio"] for prepared in self._prepared)
        num_output = sum(len(answer.tokens.token_ids) for answer in self.answers)
        details = InputDetails(num_audio, num_input - num_audio)
        return TokenUsage(num_input, details, num_output, num_input + num_output)
