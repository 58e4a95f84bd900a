"""How the Responses API writes errors and streams."""

from facet.server.dialect import Dialect, openai_error, tagged_event

RESPONSES = Dialect(
    error_body=openai_error,
    event=tagged_event,
    field_names={
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
        "thinking_token_budget": "reasoning.max_tokens",
    },
)
