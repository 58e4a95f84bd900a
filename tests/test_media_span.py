"""Spans of media in a request: what is refused, where a chunk may end, and that they travel."""

import msgspec
import pytest

from facet.engine.messages import Submit, ToEngine
from facet.errors import RequestError
from facet.media_span import MediaSpan, end_before_cut, uncuttable
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.media_spans import spans_at


def request_with(*spans: MediaSpan, num_tokens: int = 20) -> Request:
    return Request(
        request_id="a", prompt_token_ids=tuple(range(num_tokens)), sampling=SamplingParams(), media=tuple(spans)
    )


def span(first: int, length: int, **fields: object) -> MediaSpan:
    return MediaSpan(**{"first": first, "length": length, "kind": "image", "content_key": "k", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([span(-1, 3)], "span 0 (positions -1 to 1) begins before position 0"),
        ([span(3, 0)], "has 0 tokens"),
        ([span(3, -2)], "has -2 tokens"),
        ([span(15, 6)], "span 0 (positions 15 to 20) ends behind the prompt, which has 20 tokens"),
        ([span(3, 5), span(7, 2)], "span 1 (positions 7 to 8) begins before position 8"),
        ([span(9, 2), span(3, 2)], "begins before position 11"),
        ([span(3, 2, content_key="")], "empty content_key"),
        ([span(3, 2, kind="smell")], "of kind 'smell'. Known: image, audio, video"),
    ],
)
def test_what_is_refused(spans: list[MediaSpan], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        request_with(*spans)
    assert words in str(refused.value)
    assert refused.value.field == "media"


def test_neighbours_and_whole_prompts_are_spans_too() -> None:
    assert len(request_with(span(0, 3), span(3, 17)).media) == 2


def test_a_request_with_media_travels() -> None:
    sent = request_with(span(2, 5, attends_both_ways=True), span(9, 1, kind="audio"))
    received = msgspec.msgpack.Decoder(ToEngine).decode(msgspec.msgpack.encode(Submit(sent)))
    assert isinstance(received, Submit)
    assert received.request == sent


def test_spans_that_travel_are_checked_where_they_arrive() -> None:
    sent = request_with(span(15, 5))
    longer = msgspec.msgpack.encode(Submit(sent)).replace(b"\xa6length\x05", b"\xa6length\x06")
    with pytest.raises(msgspec.ValidationError, match="ends behind the prompt"):
        msgspec.msgpack.Decoder(ToEngine).decode(longer)


def test_chunks_end_before_or_behind_what_attends_both_ways() -> None:
    spans = (*spans_at((3, 8), (8, 12)), *spans_at((14, 18), both_ways=False), *spans_at((19, 20)))
    fixed = uncuttable(spans)
    assert [(each.first, each.end) for each in fixed] == [(3, 8), (8, 12)]
    ends = [end_before_cut(fixed, end) for end in range(21)]
    assert ends == [0, 1, 2, 3, 3, 3, 3, 3, 8, 8, 8, 8, *range(12, 21)]
