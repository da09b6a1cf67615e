"""Traces sent to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`.

Configured by OpenTelemetry's own environment: on when `OTEL_EXPORTER_OTLP_ENDPOINT` or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, unless `OTEL_SDK_DISABLED` is true or
`OTEL_TRACES_EXPORTER` names something else; headers, timeouts and resource attributes follow
their variables. Nothing of it is imported before that. Spans leave in batches, on a thread of the
SDK's, from a bounded queue: a collector that is slow or gone costs spans, not requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from skerry import __version__
from skerry_edge.telemetry.tracing import Candidate, Span, TraceRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE = "skerry-edge"
SCOPE = "skerry"
SERVER_ERROR = 500  # statuses from here on are this side's failures


class OTLPNotInstalled(Exception):
    """An exporter is configured, and its packages are missing; the message says what to do."""


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return whether the environment configures spans by OTLP."""
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    return not is_disabled and exporter == "otlp" and any(environ.get(each) for each in ENDPOINTS)


def open_exporter(edge: str, region: str) -> OTLPExporter:
    """Return an exporter as the process's environment configures it. Raises `OTLPNotInstalled`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise OTLPNotInstalled(
            f"{ENDPOINTS[1]} is set, but {error.name} is not installed: `pip install '.[otel]'` "
            "in Skerry's repository"
        ) from None
    service = {"service.name": SERVICE, "service.version": __version__}
    place = {"service.instance.id": edge, "skerry.region": region}
    return OTLPExporter(BatchSpanProcessor(OTLPSpanExporter()), Resource.create(service | place))


class OTLPExporter:
    """Hands finished traces to OpenTelemetry's batch processor."""

    def __init__(self, processor: BatchSpanProcessor, resource: Resource) -> None:
        self._processor = processor
        self._resource = resource

    def export(self, record: TraceRecord) -> None:
        """Take a trace, at once. One that its caller does not sample is left out."""
        if record.is_sampled:
            for span in readable_spans(record, self._resource):
                self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left, within the exporter's timeout."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def readable_spans(record: TraceRecord, resource: Resource) -> Iterator[ReadableSpan]:
    """Return a trace's spans as the SDK exports them. Wall-clock times are made here, for
    people."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    def context(span_id: str, *, is_remote: bool = False) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(record.trace_id, 16), int(span_id, 16), is_remote, flags)

    scope = InstrumentationScope(SCOPE, __version__)
    root = record.spans[0]
    for span in record.spans:
        is_root = span is root
        failed = is_root and (record.status or 0) >= SERVER_ERROR
        yield ReadableSpan(
            name=span.name,
            context=context(span.id),
            parent=context(span.parent, is_remote=is_root) if span.parent else None,
            resource=resource,
            attributes=_attributes(span, record if is_root else None),
            kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=_nanoseconds(record.started_at + span.start),
            end_time=_nanoseconds(record.started_at + span.start + (span.seconds or 0.0)),
            instrumentation_scope=scope,
        )


def _attributes(
    span: Span, request: TraceRecord | None
) -> dict[str, str | bool | int | float | list[str]]:
    """Return names of our own under `skerry.`; where OpenTelemetry has a name, that one."""
    attributes = {f"skerry.{name}": value for name, value in span.attributes.items()}
    if span.candidates:
        attributes["skerry.candidates"] = [_explained(each) for each in span.candidates]
    if request is not None:
        attributes["skerry.request_id"] = request.request_id
        if request.status is not None:
            attributes["http.response.status_code"] = request.status
    return attributes


def _explained(candidate: Candidate) -> str:
    """Return `p0>d1 0.412300 = queue 0.100200 + prefill 0.290100`, in seconds."""
    terms = " + ".join(f"{name} {seconds:.6f}" for name, seconds in candidate.terms.items())
    return f"{candidate.path} {candidate.seconds:.6f} = {terms or '0'}"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
