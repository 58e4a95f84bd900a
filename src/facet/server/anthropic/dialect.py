"""How the Messages API writes errors and streams."""

from facet.server.anthropic.wire import ErrorDetail, ErrorEvent
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


def _error(fault: Fault) -> ErrorEvent:
    return ErrorEvent(ErrorDetail(_TYPES.get(fault.status, "invalid_request_error"), fault.message))


ANTHROPIC = Dialect(
    error_body=_error,
    event=tagged_event,
    field_names={
        "thinking_token_budget": "thinking.budget_tokens",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
    },
)
