"""Parses the token ids of a reply of Gemma 3 or 3n, which writes calls as JSON, into calls and content.

Without tokens of its own a call is text until it ends, so stop strings are searched in it as in any text.
"""

from collections.abc import Callable, Collection, Iterable

from facet.chat.deltas import ContentDelta, Delta, ToolCallArguments, ToolCallStart
from facet.chat.json_call_reader import Found, JsonCallReader
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText


class JsonReplyParser:
    """The reading state of one reply."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        *,
        tool_names: Collection[str],
        calls_come_first: bool,
        new_call_id: Callable[[], str],
    ) -> None:
        self._output = OutputText(tokenizer, sampling)
        self._reader = JsonCallReader(tool_names, must_come_first=calls_come_first)
        self._new_call_id = new_call_id
        self._num_calls = 0

    @property
    def stop_string(self) -> str | None:
        return self._output.stop_string

    def push(self, token_id: int) -> list[Delta]:
        return self._read(self._output.push(token_id)) if self.stop_string is None else []

    def finish(self, *, is_complete: bool = False) -> list[Delta]:
        if self.stop_string is not None:
            return []
        deltas = self._read(self._output.finish())
        return deltas if self.stop_string is not None else deltas + self._end(is_complete=is_complete)

    def _read(self, text: str) -> list[Delta]:
        deltas = self._as_deltas(self._reader.take(text)) if text else []
        return deltas if self.stop_string is None else deltas + self._end(is_complete=False)

    def _end(self, *, is_complete: bool) -> list[Delta]:
        return self._as_deltas(self._reader.end(is_complete=is_complete))

    def _as_deltas(self, found: Iterable[Found]) -> list[Delta]:
        deltas: list[Delta] = []
        for item in found:
            if isinstance(item, str):
                deltas.append(ContentDelta(item))
            else:
                deltas.append(ToolCallStart(self._num_calls, self._new_call_id(), item.name))
                deltas.append(ToolCallArguments(self._num_calls, item.arguments))
                self._num_calls += 1
        return deltas
