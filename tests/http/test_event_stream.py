"""Events are read from parts of any size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.http.event_stream import EventReader

STREAM = (
    b'data: {"a": 1}\n\n: ping\n\nevent: x\ndata:{"b": 2}\nid: 7\n\r\n'
    b"data: first\r\ndata: second\r\n\r\n\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"first\nsecond", b"[DONE]"]


@given(cuts=st.lists(st.integers(1, len(STREAM)), max_size=40))
def test_however_it_is_cut(cuts: list[int]) -> None:
    reader = EventReader()
    places = sorted({0, *cuts, len(STREAM)})
    found = [event for start, end in itertools.pairwise(places) for event in reader.feed(STREAM[start:end])]
    assert found == EVENTS
    assert reader.end() == []


def test_an_event_counts_once_its_blank_line_is_there() -> None:
    reader = EventReader()
    assert reader.feed(b"data: x\n") == []
    assert reader.feed(b"\n") == [b"x"]


@pytest.mark.parametrize("left", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"])
def test_an_end_without_the_blank_line(left: bytes) -> None:
    reader = EventReader()
    assert reader.feed(left) == []
    assert reader.end() == [b"[DONE]"]
