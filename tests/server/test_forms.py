"""Forms with files: what is written is read, and everything else is refused in words."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.server.errors import HttpError
from facet.server.transcriptions.form import MAX_PARTS, Form, read_form

BOUNDARY = "xyz"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, bytes], boundary: str = BOUNDARY) -> bytes:
    """Of what the parts say of themselves, and hold."""
    mark = f"--{boundary}".encode()
    written = b"".join(
        b"%b\r\nContent-Disposition: form-data%b\r\n\r\n%b\r\n" % (mark, head.encode(), content)
        for head, content in parts
    )
    return written + mark + b"--\r\n"


@given(
    content=st.binary(max_size=300).filter(lambda content: f"\r\n--{BOUNDARY}".encode() not in content),
    text=st.text(max_size=50),
    padding=st.sampled_from([b"", b" ", b"\t "]),
    preamble=st.sampled_from([b"", b"\r\n", b"Hello,\r\n"]),
)
def test_what_is_written_is_read(content: bytes, text: str, padding: bytes, preamble: bytes) -> None:
    body = form(('; name="file"; filename="a; name=\\"b\\".wav"', content), ("; name=prompt", text.encode()))
    body = preamble + body.replace(b"--xyz\r\n", b"--xyz" + padding + b"\r\n", 1)
    if f"--{BOUNDARY}" in text:
        return
    found = read_form(body, FORM_TYPE)
    assert found == Form({"prompt": [text]}, {"file": [content]})


SCRAPS = [
    b"--xyz",
    b"--xyz--",
    b"\r\n",
    b"\n",
    b"Content-Disposition: form-data; name=a",
    b'; filename="b"',
    b":",
    b"\xff",
    b"x" * 80,
]


@given(
    st.lists(st.one_of(st.sampled_from(SCRAPS), st.binary(max_size=5))).map(b"".join),
    st.one_of(st.just(FORM_TYPE), st.text()),
)
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(body: bytes, content_type: str) -> None:
    with contextlib.suppress(HttpError):
        read_form(bytearray(body), content_type)


@pytest.mark.parametrize("kind", [FORM_TYPE, 'Multipart/Form-Data; charset=utf-8; boundary="xyz"'])
def test_content_types(kind: str) -> None:
    assert read_form(form(('; name="a[]"', b"1"), ('; name="a[]"', b"")), kind) == Form({"a[]": ["1", ""]}, {})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (form(("", b"")), "has a part without a name"),
        (form((";name=a\r\nContent-Transfer-Encoding: base64", b"")), "in the encoding 'base64'"),
        (form((";name=a\r\nnothing", b"")), "a header without a colon"),
        (form((";name=a", b"\xff")), "a is no UTF-8"),
        (form((f";name=a\r\nX: {'x' * 5_000}", b"")), "headers do not end within 4096 bytes"),
        (form(*[(";name=a", b"")] * (MAX_PARTS + 1)), "more than 100 parts"),
        (form((";name=a", b"1")).replace(b"\r\n", b"\n"), "does not end its line"),
        (form((";name=a", b"1"))[:-4], "does not end its line"),
        (form((";name=a", b"1"))[:-9], "ends before its last boundary"),
        (b"", "ends before its last boundary"),
    ],
)
def test_broken_forms(body: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words):
        read_form(body, FORM_TYPE)


@pytest.mark.parametrize("boundary", ["", "x" * 71, "a b ", "ä", "a\tb"])
def test_boundaries_that_are_none(boundary: str) -> None:
    with pytest.raises(HttpError, match="names no boundary"):
        read_form(b"", f'multipart/form-data; boundary="{boundary}"')
