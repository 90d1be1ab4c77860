"""What the runtime tells of itself: metrics, one span per work item, and the endpoints that show them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import SpanKind

from omnistage.config import ServiceSettings
from omnistage.contracts import Payload, TensorRef, Work, payload_nbytes
from omnistage.observability import (
    Metrics,
    MetricsServer,
    Tracing,
    extract,
    inject,
    names,
    request_context,
    setup_logging,
    setup_tracing,
)
from omnistage.runtime.engines import HostedEngine
from omnistage.runtime.meta import Meta, seconds_since_sent, sent_now
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus

Ready = Callable[[], tuple[bool, str]]


class Telemetry:
    """Metrics and traces of one process."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self._server: MetricsServer | None = None
        self._seen: dict[tuple[str, ...], float] = {}

    @classmethod
    def start(cls, settings: ServiceSettings, *, service: str, version: str) -> Telemetry:
        """Set up logging, metrics and tracing as the settings say."""
        setup_logging(settings.log_level, settings.log_json, service, settings.instance, version)
        return cls(
            Metrics(service, settings.instance, version),
            setup_tracing(service, settings.instance, version, settings.otlp_endpoint),
        )

    def serve(self, settings: ServiceSettings, ready: Ready) -> None:
        """Answer /metrics, /health and /ready on the metrics port, if one is set."""
        if settings.metrics_port is None:
            return

        def health() -> tuple[bool, Mapping[str, Any]]:
            return True, {"status": "ok", "instance": settings.instance}

        def readiness() -> tuple[bool, Mapping[str, Any]]:
            good, detail = ready()
            return good, {"ready": good, "detail": detail}

        self._server = MetricsServer(self.metrics, health, readiness)
        self._server.start(settings.metrics_host, settings.metrics_port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.tracing.close()

    def hop(self, edge: str, headers: Mapping[str, str]) -> None:
        """A record of an edge has arrived."""
        seconds = seconds_since_sent(headers)
        if seconds is not None:
            self.metrics.observe(names.HOP_SECONDS, seconds, edge=edge)

    def skipped(self, via: str) -> None:
        """A message was read past that this version does not know."""
        self.metrics.add(names.SKIPPED_MESSAGES, via=via)

    def payload(self, edge: str, payload: Payload) -> None:
        """A payload was published on an edge."""
        place = payload.place if isinstance(payload, TensorRef) else "inline"
        self.metrics.add(names.TENSOR_BYTES, payload_nbytes(payload), edge=edge, place=place)

    @contextmanager
    def work(self, work: Work, meta: Meta, engine: str, deliveries: int) -> Iterator[Outcome]:
        """Around the run of one work item: a span, and the metrics of its end."""
        began = time.monotonic()
        if deliveries > 1:
            self.metrics.add(names.REDELIVERIES, model=engine)
        attributes: dict[str, str | int] = {
            names.ATTR_REQUEST_ID: work.request_id,
            names.ATTR_PIPELINE: work.pipeline,
            names.ATTR_NODE: work.node,
            names.ATTR_MODEL: engine,
            names.ATTR_DELIVERIES: deliveries,
        }
        outcome = Outcome()
        with (
            request_context(work.request_id),
            self.tracing.span(names.SPAN_WORK, attributes, parent=extract(meta.trace), kind=SpanKind.CONSUMER) as span,
        ):
            try:
                yield outcome
            finally:
                span.set_attribute(names.ATTR_OUTCOME, outcome.value)
                self.metrics.add(names.WORK_DONE, model=engine, outcome=outcome.value)
                self.metrics.observe(names.SLOT_SECONDS, time.monotonic() - began, model=engine)
                if outcome.value == "cancelled":
                    self.metrics.add(names.CANCELLATIONS, model=engine)
                if outcome.resumed:
                    self.metrics.add(names.RESUMPTIONS, model=engine)

    def queue_wait(self, engine: str, headers: Mapping[str, str]) -> None:
        """A work item was claimed."""
        seconds = seconds_since_sent(headers)
        if seconds is not None:
            self.metrics.observe(names.QUEUE_WAIT, seconds, model=engine)

    def refresh(self, bus: Bus, plane: TensorPlane, hosted: tuple[HostedEngine, ...] = ()) -> None:
        """Copy counters and gauges that others keep; called every second."""
        metrics = self.metrics
        used, capacity = plane.usage().get("shm", (0, 0))
        metrics.set(names.ARENA_USED, used)
        metrics.set(names.ARENA_CAPACITY, capacity)
        metrics.set(names.TASKS, len(asyncio.all_tasks()))
        metrics.set(names.BUS_CONNECTED, float(bus.connected))
        stats = bus.stats
        self._grow(names.BUS_RECONNECTS, stats.reconnects)
        self._grow(names.BUS_GAPS, stats.gaps_filled)
        self._grow(names.BUS_FENCED, stats.fenced)
        self._grow(names.BUS_ERRORS, stats.errors, code="asynchronous")
        self._grow(names.TENSOR_SPILLS, plane.stats.spills)
        for engine in hosted:
            metrics.set(names.QUEUE_DEPTH, engine.queue, model=engine.key)
            metrics.set(names.SLOTS, engine.spec.slots, model=engine.key)
            metrics.set(names.SLOTS_IN_USE, len(engine.running), model=engine.key)
            metrics.set(names.ENGINE_READY, float(engine.ready), model=engine.key)
            for fact, value in (engine.loaded.gauges() if engine.loaded else {}).items():
                metrics.set(names.ENGINE_FACT, value, model=engine.key, fact=fact)

    def reclaimed(self, blocks: int) -> None:
        """A sweep has reclaimed blocks."""
        self.metrics.add(names.TENSOR_RECLAIMED, blocks)

    def _grow(self, metric: names.Counter, total: float, **labels: str) -> None:
        key = (metric.name, *labels.values())
        self.metrics.add(metric, max(0.0, total - self._seen.get(key, 0.0)), **labels)
        self._seen[key] = total


class Outcome:
    """How a work item ended: "ok" or an error code."""

    def __init__(self) -> None:
        self.value = "handed_over"
        self.resumed = False

    def __call__(self, value: str) -> None:
        self.value = value


def trace_headers(meta: Meta) -> dict[str, str]:
    """Headers of a request's messages: its facts, the current trace context, and the time."""
    headers = meta.to_headers()
    inject(headers)
    headers.update(sent_now())
    return headers
