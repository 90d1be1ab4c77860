"""Traces: one per request, through all services, by W3C trace context in message headers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from omnistage.errors import OmnistageError
from omnistage.observability import names

FILE_PREFIX = "file:"
_propagator = TraceContextTextMapPropagator()


def inject(headers: MutableMapping[str, str], context: Context | None = None) -> None:
    """Add `traceparent` (and `tracestate`) of the current or given context to message headers."""
    _propagator.inject(headers, context)


def extract(headers: Mapping[str, str]) -> Context:
    """The context that message headers carry; an empty one if they carry none or a malformed one."""
    return _propagator.extract({key.lower(): value for key, value in headers.items()}, Context())


class Tracing:
    """The tracer of one service. It is passed on, never global, so that several services fit into one process."""

    def __init__(self, tracer: Tracer, provider: TracerProvider | None = None) -> None:
        self.tracer = tracer
        self._provider = provider

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        """A span that is current inside the block; an error sets its status, by code and never by message.

        To be entered and left in the same task. For a span that lives across tasks use `begin`.
        """
        span = self.begin(name, attributes, parent=parent, kind=kind)
        base = otel_context.get_current() if parent is None else parent
        attached = otel_context.attach(trace.set_span_in_context(span, base))
        try:
            yield span
        except asyncio.CancelledError:
            span.set_attribute(names.ATTR_OUTCOME, "cancelled")
            raise
        except BaseException as error:
            code = error.code if isinstance(error, OmnistageError) else type(error).__name__
            span.set_attribute(names.ATTR_OUTCOME, code)
            span.set_status(StatusCode.ERROR, code)
            raise
        finally:
            otel_context.detach(attached)
            span.end()

    def begin(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """A span that the caller ends. It is not made current."""
        return self.tracer.start_span(name, context=parent, kind=kind, attributes=attributes)

    def close(self) -> None:
        """Send what is still held back, then stop."""
        if self._provider is not None:
            self._provider.shutdown()


def setup_tracing(service: str, instance: str, version: str, endpoint: str | None) -> Tracing:
    """Tracing of a service.

    Args:
        service, instance, version: resource attributes of every span.
        endpoint: base URL of an OpenTelemetry collector (OTLP over HTTP, sent in batches), or "file:PATH" for one JSON
            line per finished span, or None: spans are not recorded, but trace context is passed on.
    """
    if endpoint is None:
        return Tracing(trace.NoOpTracer())
    resource = Resource(
        {
            "service.namespace": "omnistage",
            "service.name": service,
            "service.instance.id": instance,
            "service.version": version,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if endpoint.startswith(FILE_PREFIX):
        provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(Path(endpoint.removeprefix(FILE_PREFIX)))))
    else:
        provider.add_span_processor(BatchSpanProcessor(_otlp_exporter(endpoint)))
    return Tracing(provider.get_tracer("omnistage", version), provider)


def _otlp_exporter(endpoint: str) -> SpanExporter:
    # Imported here because it brings protobuf and requests, which a service without a collector does not need.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    bare = urlsplit(endpoint).path in ("", "/")
    return OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces" if bare else endpoint)


class FileSpanExporter(SpanExporter):
    """One JSON line per finished span, appended; several processes may share a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._descriptor is None:
            return SpanExportResult.FAILURE
        for span in spans:
            # One write each: with O_APPEND, lines of several processes do not mix.
            os.write(self._descriptor, (span.to_json(indent=None) + "\n").encode())
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
