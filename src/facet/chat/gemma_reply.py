"""Parses the token ids of a reply of Gemma 4 or FunctionGemma into thoughts, tool calls and content.

    <|channel>thought\\n...\\n<channel|>Let me see.<|tool_call>call:NAME{...}<tool_call|><|tool_response>
    <start_function_call>call:NAME{...}<end_function_call><start_function_response>

A state machine over token ids. A marker is a token, so text that looks like a marker is text. Where the format leaves
something open, these rules apply:

- newlines around a thought belong to the format; white space alone beside a marker is dropped
- a channel called final (or the like) is content, every other one is a thought; a newline joins two thoughts
- a reply that begins with the line "thought" is held back: if <channel|> comes, the opening was forgotten
- a whole call inside a thought counts only if the reply ends with it, or a response or another call follows:
  then the model forgot to close its thought. Otherwise it was only thinking about a call
- a tool response that the model invents is dropped; the real one comes from the client
- the string delimiter outside a call reads as a plain quote
- calls that are not enabled are content
- a marker inside a string of a call ends the call there, and what came of its arguments is not closed: half a string
  must not pass for the whole
- a call that is cut off before its bracket says nothing
- a stop string ends the reply in content and in a thought alike; calls are not searched
"""

from collections.abc import Callable

from facet.chat.call_reader import CallArguments, CallEvent, CallNamed, CallReader
from facet.chat.call_syntax import QUOTE
from facet.chat.content_text import ContentText
from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from facet.chat.formats import ReplyMarkers
from facet.chat.reasoning import ChannelHeader, ThoughtText
from facet.sampling_params import SamplingParams
from facet.tokens import Detokenizer, Tokenizer
from facet.tokens.output_text import OutputText


class GemmaReplyParser:
    """The reading state of one reply. Each state is a method that takes one token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        markers: ReplyMarkers,
        *,
        tools_enabled: bool,
        starts_in_thought: bool,
        new_call_id: Callable[[], str],
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._markers = markers
        self._structural = markers.structural
        self._tools_enabled = tools_enabled
        self._new_call_id = new_call_id
        # What the string delimiter is where it is only text: visible even if special tokens are not.
        self._delimiter_as_text = [markers.string_delimiter]
        if sampling.skip_special_tokens:
            self._delimiter_as_text = tokenizer.encode('"', add_special_tokens=False)

        self._deltas: list[Delta] = []
        self._num_tokens = 0
        self._num_calls = 0
        self._has_thought = False
        self._is_only_content = not starts_in_thought  # so far
        # The part being read. Only the one that belongs to the state is alive.
        self._content = ContentText(tokenizer, sampling)
        self._detokenizer = self._new_detokenizer()  # of whatever is not content
        self._header = ChannelHeader()
        self._thought, self._thought_output = ThoughtText(), OutputText(tokenizer, sampling)
        self._call = CallReader()
        self._held_ids: list[int] = []  # of a call in a thought, or of a reply's first words
        marks_thoughts = markers.closes_channel is not None
        self._state: Callable[[int], None] = self._in_opening if marks_thoughts else self._in_content
        if starts_in_thought:
            self._open_channel(is_thought=True)

    @property
    def stop_string(self) -> str | None:
        return self._content.stop_string or self._thought_output.stop_string

    def push(self, token_id: int) -> list[Delta]:
        if self.stop_string is None:
            self._num_tokens += 1
            self._state(token_id)
        return self._take_deltas()

    def finish(self, *, is_complete: bool = False) -> list[Delta]:
        if self.stop_string is None:
            if self._state == self._in_opening:
                self._replay_as(self._in_content)
            elif self._state == self._after_call_in_thought:
                self._read_call_in_thought()
            if self._state == self._in_call:
                self._end_call(is_cut=not is_complete)
            else:
                self._end_text()
            if self._is_only_content and self._content.leading_space:
                self._deltas.append(ContentDelta(self._content.leading_space))
        return self._take_deltas()

    # Content

    def _in_content(self, token_id: int) -> None:
        markers = self._markers
        if token_id not in self._structural:
            self._push_content(token_id)
        elif token_id == markers.opens_channel:
            self._open_header()
        elif token_id == markers.opens_call and self._tools_enabled:
            self._open_call()
        elif token_id == markers.opens_response and self._num_calls:
            self._end_text()
            self._state = self._in_response
        elif token_id == markers.closes_channel or (token_id == markers.closes_call and self._tools_enabled):
            pass  # it closes nothing
        else:
            self._push_content(token_id)

    def _push_content(self, token_id: int) -> None:
        for text_id in self._as_text(token_id):
            self._add_content(self._content.push(text_id))

    def _in_response(self, token_id: int) -> None:
        markers = self._markers
        if token_id in self._structural and token_id != markers.opens_response:
            self._open_content()
            if token_id != markers.closes_response:
                self._in_content(token_id)

    def _open_content(self, *, drops_newlines: bool = False) -> None:
        self._content = ContentText(
            self._tokenizer, self._sampling, num_tokens_before=self._num_tokens, drops_newlines=drops_newlines
        )
        self._state = self._in_content

    def _add_content(self, text: str) -> None:
        if text:
            self._deltas.append(ContentDelta(text))

    # Thoughts

    def _in_opening(self, token_id: int) -> None:
        """At the start of a reply, while it reads like a channel whose opening marker was forgotten."""
        if token_id == self._markers.closes_channel and self._header.is_complete:
            self._header, self._detokenizer = ChannelHeader(), self._new_detokenizer()
            self._is_only_content = False
            self._replay_as(self._in_header)
            self._state(token_id)
            return
        if token_id not in self._structural:
            if not self._header.is_complete:
                self._header.take(self._decode(token_id))
            if self._header.may_be_thought_line:
                self._held_ids.append(token_id)
                return
        self._replay_as(self._in_content)
        if self.stop_string is None:
            self._state(token_id)

    def _replay_as(self, state: Callable[[int], None]) -> None:
        """Reads the tokens that were held, now that their meaning is known."""
        token_ids, self._held_ids, self._state = self._held_ids, [], state
        for token_id in token_ids:
            if self.stop_string is None:
                self._state(token_id)

    def _in_header(self, token_id: int) -> None:
        if token_id in self._structural:
            self._end_header()
            self._state(token_id)
        else:
            self._header.take(self._decode(token_id))
            if self._header.is_complete:
                self._end_header()

    def _in_thought(self, token_id: int) -> None:
        markers = self._markers
        if token_id == markers.closes_channel or token_id in markers.ends_turn:
            self._end_text()
            self._open_content(drops_newlines=True)
            if token_id != markers.closes_channel:
                self._in_content(token_id)
        elif token_id == markers.opens_channel:
            self._open_header()
        elif token_id == markers.opens_call and self._tools_enabled:
            self._held_ids = [token_id]
            self._state = self._in_call_in_thought
        else:
            self._think(token_id)

    def _in_call_in_thought(self, token_id: int) -> None:
        """Held until it is known whether the call was meant."""
        if token_id == self._markers.closes_call:
            self._held_ids.append(token_id)
            self._state = self._after_call_in_thought
        elif token_id in self._structural:
            self._think_call()
            self._in_thought(token_id)
        else:
            self._held_ids.append(token_id)

    def _after_call_in_thought(self, token_id: int) -> None:
        markers = self._markers
        if token_id in (markers.opens_call, markers.opens_response) or token_id in markers.ends_turn:
            self._read_call_in_thought()
            self._state(token_id)
        elif self._tokenizer.decode([token_id]).isspace():
            self._held_ids.append(token_id)
        else:
            self._think_call()
            self._in_thought(token_id)

    def _read_call_in_thought(self) -> None:
        self._state = self._in_thought
        self._end_text()
        self._open_content()
        self._replay_as(self._in_content)

    def _think_call(self) -> None:
        self._state = self._in_thought
        token_ids, self._held_ids = self._held_ids, []
        for token_id in token_ids:
            self._think(token_id)

    def _open_header(self) -> None:
        self._end_text()
        self._is_only_content = False
        self._header, self._detokenizer = ChannelHeader(), self._new_detokenizer()
        self._state = self._in_header

    def _end_header(self) -> None:
        if not self._header.is_complete:
            self._header.take(self._detokenizer.finish())
            self._header.finish()
        self._open_channel(is_thought=self._header.is_thought)
        if self._state == self._in_thought:
            self._add_thought(self._thought_output.add_text(self._header.rest))
        else:
            self._add_content(self._content.add_text(self._header.rest))

    def _open_channel(self, *, is_thought: bool) -> None:
        if is_thought:
            self._thought = ThoughtText(joins_another=self._has_thought)
            self._thought_output = OutputText(self._tokenizer, self._sampling, num_tokens_before=self._num_tokens)
            self._state = self._in_thought
        else:
            self._open_content(drops_newlines=True)

    def _think(self, token_id: int) -> None:
        for text_id in self._as_text(token_id):
            if self.stop_string is None:
                self._add_thought(self._thought_output.push(text_id))

    def _add_thought(self, text: str) -> None:
        if certain := self._thought.take(text):
            self._has_thought = True
            self._deltas.append(ReasoningDelta(certain))

    # Calls

    def _in_call(self, token_id: int) -> None:
        if token_id in self._structural:
            self._end_call()
            if token_id != self._markers.closes_call:  # that was forgotten: this token opens what follows
                self._state(token_id)
            return
        if token_id == self._markers.string_delimiter:
            self._call.take_text(self._detokenizer.finish())
            self._call.take(QUOTE)
        else:
            self._call.take_text(self._detokenizer.push(token_id))
        self._add_call_events(self._call.take_events())

    def _open_call(self) -> None:
        self._end_text()
        self._is_only_content = False
        self._call, self._detokenizer = CallReader(), self._new_detokenizer()
        self._state = self._in_call

    def _end_call(self, *, is_cut: bool = False) -> None:
        self._call.take_text(self._detokenizer.finish())
        self._add_call_events(self._call.cut() if is_cut else self._call.end())
        self._open_content()

    def _add_call_events(self, events: list[CallEvent]) -> None:
        for event in events:
            if isinstance(event, CallNamed):
                self._deltas.append(ToolCallStart(self._num_calls, self._new_call_id(), event.name))
                self._num_calls += 1
            elif isinstance(event, CallArguments):
                self._deltas.append(ToolCallArguments(self._num_calls - 1, event.fragment))
            else:
                self._add_content(event.text)

    # Shared

    def _end_text(self) -> None:
        """Returns what the current content or thought held back, because no more of it follows."""
        if self._state == self._in_header:
            self._end_header()
        if self._state == self._in_call_in_thought:
            self._think_call()
        if self._state == self._in_content and self.stop_string is None:
            self._add_content(self._content.finish())
        elif self._state == self._in_thought and self.stop_string is None:
            self._add_thought(self._thought_output.finish())

    def _decode(self, token_id: int) -> str:
        return "".join(self._detokenizer.push(text_id) for text_id in self._as_text(token_id))

    def _as_text(self, token_id: int) -> list[int]:
        return self._delimiter_as_text if token_id == self._markers.string_delimiter else [token_id]

    def _new_detokenizer(self) -> Detokenizer:
        return Detokenizer(self._tokenizer, skip_special_tokens=self._sampling.skip_special_tokens)

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
