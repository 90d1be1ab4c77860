"""Metrics, traces, logs and the endpoints that show them."""

from omnistage.observability import names
from omnistage.observability.logging import describe_error, get_logger, request_context, setup_logging
from omnistage.observability.metrics import CONTENT_TYPE, Metrics
from omnistage.observability.server import Check, MetricsServer
from omnistage.observability.tracing import Tracing, extract, inject, setup_tracing

__all__ = [
    "CONTENT_TYPE",
    "Check",
    "Metrics",
    "MetricsServer",
    "Tracing",
    "describe_error",
    "extract",
    "get_logger",
    "inject",
    "names",
    "request_context",
    "setup_logging",
    "setup_tracing",
]
