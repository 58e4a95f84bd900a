"""Reads bodies that are forms with files (multipart/form-data, RFC 7578).

A body is in memory, within the server's limit for it, before it is read here. It is read once from its beginning to
its end, and what browsers and HTTP libraries do not write is refused rather than guessed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from facet.server.errors import HttpError

MAX_PARTS = 100
MAX_HEAD_BYTES = 4 << 10  # of a part: its name, and that of its file
MAX_FIELD_BYTES = 64 << 10  # of a field that is no file
_MAX_BOUNDARY_BYTES = 70

_PARAMETER = re.compile(r';[ \t]*([\w*-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))', re.ASCII)
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]", re.ASCII)
_LINE_END = b"\r\n"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form. Names may come several times, in this order."""

    fields: Mapping[str, list[str]]
    files: Mapping[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    is_file: bool
    content: memoryview


def read_form(body: bytes | bytearray, content_type: str) -> Form:
    fields: dict[str, list[str]] = {}
    files: dict[str, list[bytes]] = {}
    for part in _parts(body, _boundary(content_type)):
        if part.is_file:
            files.setdefault(part.name, []).append(bytes(part.content))
        else:
            fields.setdefault(part.name, []).append(_text(part))
    return Form(fields, files)


def _boundary(content_type: str) -> bytes:
    kind, _, _ = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise HttpError(
            400,
            f"The body must be a form with a file (Content-Type: multipart/form-data), not {kind.strip()[:100]!r}. "
            "Send it as curl -F file=@speech.wav does.",
        )
    boundary = _parameters(content_type).get("boundary", "")
    if len(boundary) > _MAX_BOUNDARY_BYTES or not _BOUNDARY.fullmatch(boundary):
        raise HttpError(
            400,
            f"The Content-Type names no boundary of 1 to {_MAX_BOUNDARY_BYTES} characters. Let the HTTP library write "
            "this header.",
        )
    return boundary.encode()


def _parts(body: bytes | bytearray, boundary: bytes) -> Iterator[_Part]:
    mark, view = _LINE_END + b"--" + boundary, memoryview(body)
    place = len(mark) - 2 if body.startswith(mark[2:]) else _behind(body, mark, 0)
    for _ in range(MAX_PARTS + 1):
        if body.startswith(b"--", place):
            return
        head_start = body.find(_LINE_END, place, place + MAX_HEAD_BYTES)
        if head_start < 0 or bytes(view[place:head_start]).strip(b" \t"):
            raise _broken("has a boundary that does not end its line")
        head_end = body.find(_LINE_END * 2, head_start, head_start + MAX_HEAD_BYTES)
        if head_end < 0:
            raise _broken(f"has a part whose headers do not end within {MAX_HEAD_BYTES} bytes")
        start = head_end + 2 * len(_LINE_END)
        place = _behind(body, mark, start)
        name, is_file = _read_head(bytes(view[head_start:head_end]))
        yield _Part(name, is_file, view[start : place - len(mark)])
    raise HttpError(400, f"The form has more than {MAX_PARTS} parts. Send fewer.")


def _behind(body: bytes | bytearray, mark: bytes, start: int) -> int:
    found = body.find(mark, start)
    if found < 0:
        raise _broken("ends before its last boundary")
    return found + len(mark)


def _read_head(head: bytes) -> tuple[str, bool]:
    """The name of a part, and whether it is a file."""
    disposition = ""
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _broken("has headers that are no UTF-8") from None
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise _broken("has a header without a colon")
        match name.strip().lower():
            case "content-disposition":
                disposition = value.strip()
            case "content-transfer-encoding" if value.strip().lower() not in ("binary", "8bit", "7bit"):
                raise _broken(f"has a part in the encoding {value.strip()[:40]!r}, where only binary is read")
    parameters = _parameters(disposition)
    if disposition.partition(";")[0].strip().lower() != "form-data" or not parameters.get("name"):
        raise _broken("has a part without a name")
    return parameters["name"], "filename" in parameters or "filename*" in parameters


def _parameters(header: str) -> dict[str, str]:
    return {
        found[1].lower(): found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        for found in _PARAMETER.finditer(header)
    }


def _text(part: _Part) -> str:
    if len(part.content) > MAX_FIELD_BYTES:
        raise HttpError(
            413,
            f"{part.name} has {len(part.content):,} bytes, but a field may have {MAX_FIELD_BYTES:,}. Send less; a file "
            "needs a filename.",
            param=part.name,
        )
    try:
        return str(part.content, "utf-8")
    except UnicodeDecodeError:
        raise HttpError(400, f"{part.name} is no UTF-8. Send it in that encoding.", param=part.name) from None


def _broken(what: str) -> HttpError:
    return HttpError(400, f"The body {what}: it is no multipart/form-data, or was cut short. Send it again.")
