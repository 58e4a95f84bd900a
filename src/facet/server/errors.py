"""Decides what a client may know of an exception, and with which HTTP status. How it is written is its API's affair."""

import logging
from dataclasses import dataclass

from facet.errors import CapacityError, EngineDeadError, FacetError, NonFiniteLogitsError, RequestError
from facet.server.engine_bridge import AsleepError, OverloadedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a client may know of an exception."""

    status: int
    message: str
    param: str | None = None  # the field to change


class HttpError(FacetError):
    """A response with a status other than 200, decided by the server itself."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def explain(error: BaseException) -> Fault:
    """What a client may know of an error. Faults of our own are logged and not shown."""
    match error:
        case HttpError():
            return Fault(error.status, str(error), error.param)
        case RequestError():
            return Fault(400, str(error), error.field)
        case CapacityError():
            return Fault(400, str(error))
        case OverloadedError() | AsleepError() | EngineDeadError():
            return Fault(503, str(error))
        case NonFiniteLogitsError():
            return Fault(500, str(error))
    logger.error("A request failed", exc_info=error)
    return Fault(500, "The server failed on this request; its log says why.")
