"""How Ollama's API writes errors and streams: a line of JSON each."""

import msgspec

from facet.server.dialect import Dialect
from facet.server.ollama.wire import ErrorLine

OLLAMA = Dialect(
    error_body=lambda fault: ErrorLine(fault.message),
    event=lambda line: msgspec.json.encode(line) + b"\n",
    media_type="application/x-ndjson",
    field_names={
        "max_tokens": "options.num_predict",
        "repetition_penalty": "options.repeat_penalty",
        "reasoning_effort": "think",
        "response_format": "format",
    },
)
