"""How the Messages API writes errors and streams."""

from facet.server.anthropic.wire import ErrorDetail, ErrorDetails, ErrorEvent
from facet.server.dialect import Dialect, tagged_event
from facet.server.errors import Fault

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    431: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


# More about an error, by the field at fault. Anthropic's clients send the whole conversation if they read that there
# are no threads.
_DETAILS = {"thread": ErrorDetails("thread_unsupported_request")}


def _error(fault: Fault) -> ErrorEvent:
    kind = _TYPES.get(fault.status, "invalid_request_error")
    return ErrorEvent(ErrorDetail(kind, fault.message, _DETAILS.get(fault.param or "")))


ANTHROPIC = Dialect(
    error_body=_error,
    event=tagged_event,
    field_names={
        "thinking_token_budget": "thinking.budget_tokens",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
    },
)
