"""Defines how an API writes errors and streams, and how OpenAI's does.

The endpoints of one API share a `Dialect`. It decides about the form alone: what to say is the affair of
`errors.explain` and of the exchanges.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
from starlette.responses import Response

from facet.errors import RequestError
from facet.http.event_stream import END_OF_STREAM, as_event
from facet.server.errors import Fault, explain

# Long enough that clients do not all come back at once, and not long, because steps are short.
RETRY_AFTER_SECONDS = 5

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    error_body: Callable[[Fault], msgspec.Struct]
    event: Callable[[msgspec.Struct], bytes]  # an event of a stream
    end: bytes = b""  # what a stream ends with that did not fail
    media_type: str = "text/event-stream"
    # Fields of chat completions that have another name here, which errors are to use.
    field_names: Mapping[str, str] = field(default_factory=dict)

    def fault(self, error: BaseException) -> Fault:
        """What went wrong, in the words of this API."""
        fault = explain(error)
        if fault.param is None or not self.field_names:
            return fault
        message = _rename(fault.message, self.field_names)
        return replace(fault, message=message, param=self.field_names.get(fault.param, fault.param))

    def error_response(self, error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
        fault = self.fault(error)
        headers = dict(headers or {})
        if fault.status == 503:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        if fault.status == 408:
            headers["Connection"] = "close"  # what may still come belongs to this request, not to another
        if fault.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(_encode(self.error_body(fault)), fault.status, headers, "application/json")


@contextlib.contextmanager
def renaming(field_names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside use other names for fields. For requests that may name one thing in two ways."""
    try:
        yield
    except RequestError as error:
        if error.field is None or not field_names:
            raise
        field = field_names.get(error.field, error.field)
        raise RequestError(_rename(str(error), field_names), field=field) from None


def _rename(message: str, field_names: Mapping[str, str]) -> str:
    words = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, field_names))})(?!\w)")
    return words.sub(lambda found: field_names[found[0]], message)


class ErrorDetail(msgspec.Struct, frozen=True):
    """The type is vLLM's name, the code is the status as a number."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def openai_error(fault: Fault) -> ErrorBody:
    kind = _TYPES.get(fault.status, "BadRequestError")
    return ErrorBody(ErrorDetail(fault.message, kind, fault.param, fault.status))


OPENAI = Dialect(
    error_body=openai_error,
    event=lambda chunk: as_event(_encode(chunk)),
    end=as_event(END_OF_STREAM),
    field_names={"prompt_token_ids": "prompt"},
)


def tagged_event(event: msgspec.Struct) -> bytes:
    """A server-sent event that is also named, for APIs whose events have a type."""
    return f"event: {event.__struct_config__.tag}\n".encode() + as_event(_encode(event))
