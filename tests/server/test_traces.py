"""Traces: what arrives at a collector, and what is said where the libraries are missing."""

import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.server.run import check_accepted_flags
from facet.server.traces import PROTOCOL_VARIABLE
from tests.server.conftest import Scripted

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "what nobody may read in a trace"


class Collector(ThreadingHTTPServer):
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Receiver)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def spans(self) -> list[Span]:
        sent = [resource for message in self.received for resource in message.resource_spans]
        assert {attributes(resource.resource)["service.name"] for resource in sent} == {"facet"}
        return [span for resource in sent for scope in resource.scope_spans for span in scope.spans]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert SECRET.encode() not in body
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv(PROTOCOL_VARIABLE, "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
    with Collector() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def attributes(owner: Any) -> dict[str, Any]:
    values = {}
    for item in owner.attributes:
        kind = item.value.WhichOneof("value")
        values[item.key] = getattr(item.value, kind)
    return values


def test_every_answer_is_a_span(scripted: Scripted, collector: Collector) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "n": 2, "seed": 1, "max_tokens": 8, "temperature": 0.5}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with scripted("one two", otlp_traces_endpoint=collector.url) as (server, engine):
        answer = server.post("/v1/chat/completions", body, headers=headers).json()
        assert server.chunks("/v1/completions", {"prompt": SECRET, "max_tokens": 2})
    *both, streamed = collector.spans()  # sent at the end, if not before
    assert [span.trace_id.hex() for span in both] == [TRACE, TRACE]
    assert [span.parent_span_id.hex() for span in both] == [PARENT, PARENT]
    assert streamed.trace_id.hex() != TRACE
    assert {span.name for span in (*both, streamed)} == {"llm_request"}
    values = attributes(both[0])
    assert values["gen_ai.response.model"] == "tiny"
    assert values["gen_ai.request.id"] == engine.submitted[0].request_id
    assert (values["gen_ai.request.n"], values["gen_ai.request.max_tokens"]) == (2, 8)
    assert values["gen_ai.request.temperature"] == 0.5
    assert values["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert 2 * values["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"]
    assert 0 <= values["gen_ai.latency.time_to_first_token"] <= values["gen_ai.latency.e2e"]
    seconds = (both[0].end_time_unix_nano - both[0].start_time_unix_nano) / 1e9
    assert seconds == pytest.approx(values["gen_ai.latency.e2e"], abs=1e-3)
    assert attributes(streamed)["gen_ai.usage.completion_tokens"] == 2


def test_a_span_names_the_adapter(scripted: Scripted, collector: Collector) -> None:
    with scripted("one", otlp_traces_endpoint=collector.url, engine={"adapters": {"poet": "/p"}}) as (server, _):
        for name in ("poet", "tiny"):
            server.post("/v1/completions", {"prompt": "one", "model": name})
    names = [attributes(span)["gen_ai.response.model"] for span in collector.spans()]
    assert names == ["poet", "tiny"]


def test_what_cannot_be_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(model="x", otlp_traces_endpoint="http://localhost:4317")
    monkeypatch.setenv(PROTOCOL_VARIABLE, "carrier pigeon")
    with pytest.raises(ConfigError, match="'carrier pigeon', but must be one of 'grpc', 'http/protobuf'"):
        check_accepted_flags(config)
    monkeypatch.setenv(PROTOCOL_VARIABLE, "http/protobuf")
    check_accepted_flags(config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed.*pip install 'facet-llm\[otel\]'"):
        check_accepted_flags(config)
