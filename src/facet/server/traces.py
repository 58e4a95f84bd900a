"""Sends a trace of every answer to an OpenTelemetry collector: one span, with lengths and times but no text.

The libraries are an optional extra. Spans are sent by a thread of the library, in batches. Names of spans and
attributes are vLLM's.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facet.errors import ConfigError
from facet.request import Request
from facet.version import __version__

PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
# The module that sends spans in each protocol. gRPC is the default, as it is vLLM's.
_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTrace:
    """One answer that has ended. Times are None where no token came."""

    request: Request
    n: int
    num_tokens: int
    finish_reason: str
    start: float  # in seconds since 1970
    seconds: float
    seconds_to_first_token: float | None
    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None


class Traces:
    """The spans of this server."""

    def __init__(self, endpoint: str, model_name: str) -> None:
        check_traces(endpoint)
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or "facet"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = importlib.import_module(_EXPORTERS[_protocol()]).OTLPSpanExporter(endpoint=endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("facet", __version__)
        self._model_name = model_name

    def record(self, trace: AnswerTrace, headers: Mapping[str, str]) -> None:
        """`headers` of the HTTP request may name the trace that it is part of."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            start_time=round(trace.start * 1e9),
            attributes=_attributes(trace, self._model_name),
        )
        span.end(end_time=round((trace.start + trace.seconds) * 1e9))

    def close(self) -> None:
        """Sends what has not been sent."""
        self._provider.shutdown()


def check_traces(endpoint: str) -> None:
    """Refuses an endpoint that cannot be used."""
    module = _EXPORTERS.get(_protocol())
    if module is None:
        raise ConfigError(
            f"{PROTOCOL_VARIABLE} is {_protocol()!r}, but must be one of {', '.join(map(repr, _EXPORTERS))}."
        )
    if not all(map(_is_installed, ("opentelemetry.sdk.trace", module))):
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint} needs the libraries of OpenTelemetry, which are not installed. Install "
            "them with: pip install 'facet-llm[otel]'"
        )


def _protocol() -> str:
    return os.environ.get(PROTOCOL_VARIABLE) or "grpc"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is a package above it
        return False


def _attributes(trace: AnswerTrace, model_name: str) -> dict[str, Any]:
    sampling, decode, prefill = trace.request.sampling, trace.decode_seconds, trace.prefill_seconds
    attributes = {
        "gen_ai.response.model": trace.request.adapter or model_name,
        "gen_ai.response.finish_reasons": (trace.finish_reason,),
        "gen_ai.request.id": trace.request.request_id,
        "gen_ai.request.n": trace.n,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.usage.prompt_tokens": len(trace.request.prompt_token_ids),
        "gen_ai.usage.completion_tokens": trace.num_tokens,
        "gen_ai.latency.e2e": trace.seconds,
        "gen_ai.latency.time_to_first_token": trace.seconds_to_first_token,
        "gen_ai.latency.time_in_queue": trace.queue_seconds,
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": None if prefill is None or decode is None else prefill + decode,
    }
    return {name: value for name, value in attributes.items() if value is not None}
