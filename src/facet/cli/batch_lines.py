"""The lines of batch files, as OpenAI defines them: requests in, answers out. Knows nothing of files and servers."""

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_NULL = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str
    url: str
    body: bytes


class BadLineError(Exception):
    """A line that asks nothing which can be answered."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


class _Line(msgspec.Struct):
    """A line with fields of any types, so that what is wrong with one does not hide the others."""

    custom_id: Any = None
    method: Any = "POST"
    url: Any = None
    body: msgspec.Raw = _NULL


class _Body(msgspec.Struct):
    stream: Any = None
    background: Any = None


class _Id(msgspec.Struct):
    custom_id: Any = None


_read_line = msgspec.json.Decoder(_Line).decode
_read_body = msgspec.json.Decoder(_Body).decode
_read_id = msgspec.json.Decoder(_Id).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def custom_id_of(text: bytes) -> str | None:
    """The id of a line that may be wrong in every other way."""
    try:
        found = _read_id(text).custom_id
    except _UNREADABLE:
        return None
    return found if isinstance(found, str) and found else None


def read_request(text: bytes) -> BatchRequest:
    try:
        line = _read_line(text)
    except msgspec.ValidationError:
        raise BadLineError("It is not a JSON object.") from None
    except _UNREADABLE as error:
        raise BadLineError(f"It is not valid JSON: {str(error).rstrip('.')}.") from None
    name = line.custom_id
    if not isinstance(name, str) or not name:
        raise BadLineError("It has no custom_id. Give each line one of its own, a text.")
    if line.method != "POST":
        raise BadLineError(f"method is {_shown(line.method)}, but only POST is supported.", name)
    if line.url not in URLS:
        raise BadLineError(f"url is {_shown(line.url)}, but must be one of {', '.join(URLS)}.", name)
    try:
        body = _read_body(line.body)
    except _UNREADABLE:
        raise BadLineError("body is not a JSON object. Send the request there, as to a server.", name) from None
    for field, value in (("stream", body.stream), ("background", body.background)):
        if value not in (None, False):
            raise BadLineError(f"{field} is {_shown(value)}, but answers of a batch come whole. Leave it out.", name)
    return BatchRequest(name, line.url, bytes(line.body))


class Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class Error(msgspec.Struct):
    """Set in every line without an answer; `code` is the HTTP status, or why nothing was asked."""

    code: str
    message: str


class AnswerLine(msgspec.Struct):
    id: str
    custom_id: str | None
    response: Response | None  # None: nothing was asked
    error: Error | None


def new_id() -> str:
    return f"batch_req_{secrets.token_hex(16)}"


def refusal_line(number: int, error: BadLineError) -> bytes:
    told = Error("invalid_line", f"Line {number} was not sent. {error}")
    return _encode(AnswerLine(new_id(), error.custom_id, None, told)) + b"\n"


def answer_line(line_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """`body` is JSON without line breaks, as the server writes it."""
    error = None if status == 200 else Error(str(status), message_of(body))
    return _encode(AnswerLine(line_id, custom_id, Response(status, line_id, msgspec.Raw(body)), error)) + b"\n"


class _Fault(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    error: _Fault


def message_of(body: bytes) -> str:
    """The message of an error response of any of the APIs."""
    return msgspec.json.decode(body, type=_Failure).error.message


class _Written(msgspec.Struct):
    """What has to be known of an answer that was written before."""

    custom_id: str | None
    response: Any
    error: Any


_read_written = msgspec.json.Decoder(_Written).decode


def answered_id(text: bytes) -> str | None:
    """The request that a line of an output file answers; None: it says that there is no answer.

    Raises `BadLineError` for what is no such line.
    """
    try:
        line = _read_written(text)
    except _UNREADABLE:
        raise BadLineError("not an answer") from None
    return line.custom_id if line.error is None and line.response is not None else None


class _Usage(msgspec.Struct):
    """The numbers of tokens, under the names of all APIs."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0


class _Told(msgspec.Struct):
    usage: _Usage | None = None


_read_usage = msgspec.json.Decoder(_Told).decode


def count_tokens(body: bytes) -> tuple[int, int]:
    """The tokens of an answer: those of its prompt, and those generated."""
    usage = _read_usage(body).usage or _Usage()
    num_prompt = usage.prompt_tokens + usage.input_tokens + usage.cache_read_input_tokens
    return num_prompt, usage.completion_tokens + usage.output_tokens


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:100]}..."
