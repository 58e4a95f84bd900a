"""Formats errors for clients: {"error": {message, type, param, code}} with an HTTP status.

Types are vLLM's names, the code is the status as a number, and `param` is the field to change.
"""

import logging

import msgspec
from starlette.responses import Response

from facet.errors import CapacityError, EngineDeadError, FacetError, NonFiniteLogitsError, RequestError
from facet.server.engine_bridge import OverloadedError

logger = logging.getLogger(__name__)

# Long enough that clients do not all come back at once, and not long, because steps are short.
RETRY_AFTER_SECONDS = 5

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class HttpError(FacetError):
    """A response with a status other than 200, decided by the server itself."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def error_body(error: BaseException) -> ErrorBody:
    """What a client may know of an exception. Faults of our own are logged and not shown."""
    message, param = str(error), None
    if isinstance(error, HttpError):
        status, param = error.status, error.param
    elif isinstance(error, RequestError):
        status, param = 400, error.field
    elif isinstance(error, CapacityError):
        status = 400
    elif isinstance(error, OverloadedError | EngineDeadError):
        status = 503
    elif isinstance(error, NonFiniteLogitsError):
        status = 500
    else:
        status = 500
        logger.error("A request failed", exc_info=error)
        message = "The server failed on this request; its log says why."
    return ErrorBody(ErrorDetail(message, _TYPES.get(status, "BadRequestError"), param, status))


def error_response(error: BaseException, headers: dict[str, str] | None = None) -> Response:
    body = error_body(error)
    headers = dict(headers or {})
    if body.error.code == 503:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if body.error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body), body.error.code, headers, "application/json")
