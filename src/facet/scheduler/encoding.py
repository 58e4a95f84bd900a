"""Decides which media go through towers in a step, and tracks whose rows are kept.

A step encodes only so many rows, so that nobody's stream waits for a pile of pictures; a prompt whose picture has to
wait is computed up to it. Rows that a tower made are kept by content in a cache of a fixed size, which the runner owns;
which contents it holds is decided and written down here.

Media are encoded in the step that computes their first row. So whatever is held for an unfinished span belongs to a
request that needs no more room to go on, and requests cannot wait for each other.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from facet.media_span import MediaSpan
from facet.step import NO_ENCODER_WORK, EncoderWork


class SpanRows(NamedTuple):
    """Tokens of a prompt that a step computes, and the spans of that prompt whose rows towers make."""

    spans: Sequence[MediaSpan]
    start: int
    num_tokens: int

    @property
    def contents(self) -> dict[str, int]:
        """The number of rows of every span that is touched, by content key, in order."""
        end = self.start + self.num_tokens
        return {span.content_key: span.length for span in self.spans if self.start < span.end and span.first < end}


class EncoderBooks:
    """Which contents have rows in the cache, the least recently used first."""

    def __init__(self, max_num_rows: int) -> None:
        self.max_num_rows = max_num_rows
        self.held: dict[str, int] = {}

    def commit(self, work: EncoderWork) -> None:
        for key in work.forgotten:
            del self.held[key]
        for key, num_rows in work.used.items():
            self.held.pop(key, None)
            self.held[key] = num_rows

    def check_integrity(self) -> None:
        assert sum(self.held.values()) <= self.max_num_rows, "more rows are kept than there is room for"


class StepEncoding:
    """What a step that is being decided encodes. Changes with `take`; the books stay as they are."""

    def __init__(self, books: EncoderBooks, unfinished: Iterable[SpanRows], *, max_num_encoded_rows: int) -> None:
        """`unfinished`: the next token of every running request that has media. A span that it lies inside of is held,
        and is not forgotten before it is complete."""
        self._books = books
        self._max_num_encoded_rows = max_num_encoded_rows
        self._num_encoded = 0
        self._needed: dict[str, int] = {}
        for spans, start, _ in unfinished:
            self._needed |= {span.content_key: span.length for span in spans if span.first < start < span.end}

    def largest_chunk(self, spans: Sequence[MediaSpan], start: int, most: int) -> int:
        """How many tokens, up to `most`, may be computed from `start` on: all before the first span that must wait.

        A span with more rows than a step encodes is encoded when it comes first.
        """
        num_needed, num_encoded, seen = sum(self._needed.values()), self._num_encoded, set(self._needed)
        for span in spans:
            if span.end <= start or span.content_key in seen:
                continue
            if span.first >= start + most:
                break
            seen.add(span.content_key)
            num_needed += span.length
            if span.content_key not in self._books.held:
                if num_encoded and num_encoded + span.length > self._max_num_encoded_rows:
                    return max(0, span.first - start)
                num_encoded += span.length
            if num_needed > self._books.max_num_rows:
                return max(0, span.first - start)
        return most

    def take(self, rows: SpanRows) -> None:
        for key, num_rows in rows.contents.items():
            if key not in self._needed and key not in self._books.held:
                self._num_encoded += num_rows
            self._needed[key] = num_rows

    def work(self, computed: Iterable[SpanRows]) -> EncoderWork:
        """The encoder's work in the step as it was decided in the end, which may compute less than was taken."""
        used = {key: num_rows for rows in computed for key, num_rows in rows.contents.items()}
        if not used:
            return NO_ENCODER_WORK
        held = self._books.held
        encoded = tuple(key for key in used if key not in held)
        too_many = sum(held.values()) + sum(used[key] for key in encoded) - self._books.max_num_rows
        forgotten = []
        for key, num_rows in held.items():
            if too_many <= 0:
                break
            if key not in self._needed and key not in used:
                forgotten.append(key)
                too_many -= num_rows
        return EncoderWork(forgotten=tuple(forgotten), encoded=encoded, used=used)
