"""Made-up media: prompts in which some tokens are placeholders for pictures and sounds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from facet.media_span import MediaKind, MediaSpan
from facet.prepared_media import PreparedMedia

PLACEHOLDER = 5  # all spans have the same token: what differs is the content alone

# What one token of a prompt is, as far as the cache may tell: its id, and for media what it is a row of.
Content = tuple[int, tuple[MediaKind, str, int, bool, int] | None]


def spans_at(*bounds: tuple[int, int], both_ways: bool = True, key: str = "picture") -> tuple[MediaSpan, ...]:
    """One span from each first position to before each end."""
    return tuple(
        MediaSpan(
            first=first,
            length=end - first,
            kind="image",
            content_key=f"{key} {index}",
            attends_both_ways=both_ways,
        )
        for index, (first, end) in enumerate(bounds)
    )


def encoded(spans: Sequence[MediaSpan]) -> dict[str, Any]:
    """The fields of a request whose spans have contents, of which those of different length are different."""
    named = tuple(
        replace(span, content_key=f"{span.content_key} {span.length} {span.kind} {span.attends_both_ways}")
        for span in spans
    )
    items = {
        span.content_key: PreparedMedia(
            kind=span.kind,
            content_key=span.content_key,
            num_tokens=span.length,
            arrays={},
            attends_both_ways=span.attends_both_ways,
        )
        for span in named
    }
    return {"media": named, "contents": tuple(items.values())}


def contents(token_ids: Sequence[int], spans: Sequence[MediaSpan]) -> list[Content]:
    found: list[Content] = [(token_id, None) for token_id in token_ids]
    for span in spans:
        for offset in range(span.length):
            place = span.first + offset
            what = (span.kind, span.content_key, span.length, span.attends_both_ways, offset)
            found[place] = (token_ids[place], what)
    return found


@st.composite
def segments(draw: st.DrawFn, *, longest: int = 20, max_segments: int = 6) -> list[tuple[int, Any]]:
    """(number of tokens, token id or fields of a span), one after the other: few values, so that many are alike."""
    text = st.tuples(st.integers(1, longest), st.integers(0, 2))
    media = st.tuples(
        st.integers(1, longest),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["image", "image", "audio"]),
                "content_key": st.sampled_from(["one", "other"]),
                "attends_both_ways": st.sampled_from([True, True, False]),
            }
        ),
    )
    return draw(st.lists(text | media, max_size=max_segments))


def prompt_of(parts: Sequence[tuple[int, Any]]) -> tuple[list[int], tuple[MediaSpan, ...]]:
    token_ids: list[int] = []
    spans = []
    for length, what in parts:
        if isinstance(what, dict):
            spans.append(MediaSpan(first=len(token_ids), length=length, **what))
        token_ids += [PLACEHOLDER if isinstance(what, dict) else what] * length
    return token_ids, tuple(spans)
