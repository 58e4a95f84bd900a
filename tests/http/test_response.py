"""Responses come in pieces of any size, and mean the same in all of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.http.response import BadResponseError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;name=value\r\n \r\nB\r\nwide\r\nworld\r\n0\r\n\r\n"
COUNTED = HEAD + b"Content-Length: 17\r\n\r\nhello wide\r\nworld"
BODY = b"hello wide\r\nworld"


def read(*pieces: bytes) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    return reader, b"".join([reader.feed(piece) for piece in pieces])


@given(response=st.sampled_from([CHUNKED, COUNTED]), cuts=st.lists(st.integers(1, 130), max_size=40))
def test_however_it_is_cut(response: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(response)), len(response)})
    pieces = [response[start:end] for start, end in itertools.pairwise(places)]
    reader, body = read(*pieces)
    assert (reader.status, body, reader.is_complete, reader.keeps_alive) == (200, BODY, True, True)
    assert reader.headers[b"content-type"] == b"text/event-stream"


def test_byte_by_byte_it_is_complete_with_the_last_one() -> None:
    reader = ResponseReader()
    for index in range(len(CHUNKED)):
        assert not reader.is_complete
        reader.feed(CHUNKED[index : index + 1])
    assert reader.is_complete


def test_without_a_length_the_end_is_that_of_the_connection() -> None:
    reader, body = read(HEAD + b"\r\nhello ", b"wide\r\nworld")
    assert (body, reader.is_complete, reader.keeps_alive) == (BODY, False, False)
    assert reader.end()
    assert reader.is_complete


@pytest.mark.parametrize("response", [CHUNKED[:-1], COUNTED[:-1], HEAD], ids=["chunked", "counted", "head"])
def test_a_connection_that_ends_before_its_response(response: bytes) -> None:
    reader, _ = read(response)
    assert not reader.end()


def test_trailers_are_read_over() -> None:
    reader, body = read(CHUNKED[:-2] + b"Server-Timing: x\r\nOther: y\r\n\r\n")
    assert (body, reader.is_complete, reader.keeps_alive) == (BODY, True, True)


@pytest.mark.parametrize(
    "response",
    [
        COUNTED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        COUNTED.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"),
        COUNTED + b"and more",
        CHUNKED + b"HTTP/1.1 200 OK",
    ],
    ids=["1.0", "close", "more than its length", "more than its chunks"],
)
def test_when_the_connection_must_not_be_used_again(response: bytes) -> None:
    reader, body = read(response)
    assert (body, reader.is_complete, reader.keeps_alive) == (BODY, True, False)


def test_responses_without_a_body() -> None:
    for response in (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"):
        reader, body = read(response)
        assert (body, reader.is_complete, reader.keeps_alive) == (b"", True, True)


def test_go_on_is_not_yet_the_answer() -> None:
    reader, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED)
    assert (reader.status, body) == (200, BODY)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "not HTTP"),
        (HEAD + b"Content-Length: many\r\n\r\n", "content length is b'many'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "size of a chunk is b'xyz'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "size of a chunk is b'-5'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000, "no end"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "not HTTP"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_not_http(response: bytes, words: str) -> None:
    with pytest.raises(BadResponseError, match=words):
        read(response)
