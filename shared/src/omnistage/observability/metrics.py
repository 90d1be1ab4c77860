"""Recording the registered metrics of one process."""

from __future__ import annotations

import time
from collections.abc import Callable

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, generate_latest

from omnistage.observability import names

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
GATEWAY_STAGE = "gateway"

# One series per label set and metric that nobody looks at: when it was created.
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics that a service exports. Thread-safe.

    Recording a metric that belongs to another kind of service raises KeyError: the registry says who owns what.

    Args:
        stage: the service.
        instance: the process.
        version: of the service's distribution.
    """

    def __init__(self, stage: str, instance: str, version: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._fixed = {"stage": stage, "instance": instance}
        owners = {"every", "gateway" if stage == GATEWAY_STAGE else "stage"}
        self._counters: dict[str, prometheus.Counter] = {}
        self._gauges: dict[str, prometheus.Gauge] = {}
        self._histograms: dict[str, prometheus.Histogram] = {}
        for metric in names.METRICS:
            if metric.owner in owners:
                self._register(metric)
        self.set(names.PROCESS_START, time.time())
        self.set(names.BUILD, 1, version=version)

    def _register(self, metric: names.Metric) -> None:
        labels = (*names.FIXED_LABELS, *metric.labels)
        text = f"{metric.help} Unit: {metric.unit}."
        if isinstance(metric, names.Histogram):
            self._histograms[metric.name] = prometheus.Histogram(
                metric.name, text, labels, registry=self.registry, buckets=metric.buckets
            )
        elif isinstance(metric, names.Counter):
            self._counters[metric.name] = prometheus.Counter(metric.name, text, labels, registry=self.registry)
        else:
            self._gauges[metric.name] = prometheus.Gauge(metric.name, text, labels, registry=self.registry)

    def add(self, metric: names.Counter, amount: float = 1.0, /, *, model: str = "", **labels: str) -> None:
        """Let a counter grow by a non-negative amount."""
        self._counters[metric.name].labels(**self._fixed, model=model, **labels).inc(amount)

    def set(self, metric: names.Gauge, value: float, /, *, model: str = "", **labels: str) -> None:
        """Set a gauge."""
        self._gauges[metric.name].labels(**self._fixed, model=model, **labels).set(value)

    def adjust(self, metric: names.Gauge, delta: float, /, *, model: str = "", **labels: str) -> None:
        """Raise or lower a gauge."""
        self._gauges[metric.name].labels(**self._fixed, model=model, **labels).inc(delta)

    def watch(self, metric: names.Gauge, read: Callable[[], float], /, *, model: str = "", **labels: str) -> None:
        """Let a gauge be read when it is scraped, in the scraper's thread."""
        self._gauges[metric.name].labels(**self._fixed, model=model, **labels).set_function(read)

    def observe(self, metric: names.Histogram, value: float, /, *, model: str = "", **labels: str) -> None:
        """Enter a value into a distribution."""
        self._histograms[metric.name].labels(**self._fixed, model=model, **labels).observe(value)

    def value(self, metric: names.Metric, /, *, model: str = "", **labels: str) -> float:
        """Value of a counter or gauge, number of values of a histogram; 0 if nothing was recorded."""
        suffix = "_count" if isinstance(metric, names.Histogram) else ""
        wanted = {**self._fixed, "model": model, **labels}
        return self.registry.get_sample_value(metric.exposed + suffix, wanted) or 0.0

    def total(self, metric: names.Metric, /) -> float:
        """Sum of `value` over all labels."""
        name = metric.exposed + ("_count" if isinstance(metric, names.Histogram) else "")
        return sum(
            sample.value for family in self.registry.collect() for sample in family.samples if sample.name == name
        )

    def render(self) -> bytes:
        """Everything in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)
