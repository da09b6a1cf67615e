"""Spans as a collector gets them: a real HTTP endpoint that decodes OpenTelemetry's protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from tests.edge.telemetry.test_tracing import split_record

from skerry_edge.telemetry import otlp
from skerry_edge.telemetry.tracing import TraceRecord


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP on a free port of loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Collector  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.headers.append({**self.headers, "path": self.path})
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def collecting() -> Generator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        yield collector


def exported(*records: TraceRecord) -> None:
    exporter = otlp.open_exporter("edge-1", "fra")
    for record in records:
        exporter.export(record)
    exporter.close()


def test_a_trace_arrives_whole(collector: Collector) -> None:
    record = split_record()
    exported(record)
    [headers] = collector.headers
    assert (headers["path"], headers["x-key"]) == ("/v1/traces", "secret")
    spans = {span.name: span for span in collector.spans}
    assert len(collector.spans) == len(record.spans)
    assert {span.trace_id.hex() for span in collector.spans} == {record.trace_id}
    assert {span.span_id.hex() for span in collector.spans} == {span.id for span in record.spans}
    root, decode, attempt = spans["request"], spans["decode"], spans["attempt"]
    assert root.parent_span_id == b""
    assert decode.parent_span_id == attempt.span_id
    assert root.start_time_unix_nano == 1_700_000_000_000_000_000
    assert root.end_time_unix_nano - root.start_time_unix_nano == 4_000_000_000
    assert abs(decode.end_time_unix_nano - decode.start_time_unix_nano - 10**9) < 1000
    told = attributes(root)
    assert told["skerry.request_id"] == record.request_id
    assert told["http.response.status_code"] == 200
    assert attributes(decode) == {"skerry.node": "d", "skerry.tokens": 9, "skerry.steps": 9}
    candidates = attributes(spans["route"])["skerry.candidates"].values
    assert [each.string_value for each in candidates] == [
        "p>d 0.500000 = queue 0.250000 + prefill 0.250000",
        "d 0.750000 = queue 0.500000 + prefill 0.250000",
    ]


def test_the_resource_names_the_edge(collector: Collector) -> None:
    exported(split_record())
    [request] = collector.requests
    resource = {
        each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "skerry-edge"
    assert (resource["service.instance.id"], resource["skerry.region"]) == ("edge-1", "fra")


def test_what_its_caller_does_not_sample_stays_here(collector: Collector) -> None:
    exported(msgspec.structs.replace(split_record(), is_sampled=False))
    assert collector.requests == []


def test_a_failure_of_ours_is_marked(collector: Collector) -> None:
    exported(msgspec.structs.replace(split_record(), status=503))
    [failed] = [span for span in collector.spans if span.status.code == 2]
    assert failed.name == "request"


def test_a_collector_that_is_away_costs_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Collector() as gone:
        url = gone.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exported(split_record())
    assert caplog.records  # the SDK says so, and that is all


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_when_it_is_on(environ: dict[str, str], expected: bool) -> None:
    assert otlp.is_configured(environ) is expected
