"""Structured logs: one JSON object per line, on standard error.

Ids, counts, durations and codes are logged; what users say or hear never is. Three guards back that rule: fields whose
names mean user content are withheld, of an exception only its type, code and places in the code are shown (its
message only where such types never quote their input), and of other libraries' records only the first line.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO

import structlog

from omnistage.errors import BusError, ConfigError, OmnistageError, TensorError

WITHHELD_FIELDS = frozenset(
    {
        "arguments", "audio", "body", "content", "data", "delta", "input", "instructions", "message", "messages",
        "payload", "phonemes", "prompt", "query", "samples", "stop", "text", "transcript", "token", "tokens",
    }
)  # fmt: skip
"""Names of fields that would hold user content."""

WITHHELD = "<withheld>"
MAX_FIELD_CHARS = 256

_QUOTES_NO_INPUT = (
    OSError,
    MemoryError,
    ImportError,
    AttributeError,
    AssertionError,
    BusError,
    TensorError,
    ConfigError,
)
_QUOTES_NO_INPUT_EXACTLY = (RuntimeError, TypeError, ZeroDivisionError, IndexError)
_QUIET = ("uvicorn.access", "httpx", "httpcore", "asyncio", "nats", "transformers", "opentelemetry", "urllib3")

Event = MutableMapping[str, Any]


def get_logger(name: str) -> Any:
    """A structlog logger: `log.info("what happened", request_id=…, count=3)`."""
    return structlog.stdlib.get_logger(name)


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """Every log line of the current task tree names the request."""
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        yield


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as it may be logged: no local variables, and no message that may quote user content."""
    description: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
    if isinstance(error, OmnistageError):
        description["code"] = error.code
    if isinstance(error, _QUOTES_NO_INPUT) or type(error) in _QUOTES_NO_INPUT_EXACTLY:
        description["message"] = str(error)[:MAX_FIELD_CHARS]
    description["frames"] = [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        description["cause"] = describe_error(cause)
    if isinstance(error, BaseExceptionGroup):
        description["errors"] = [describe_error(member) for member in error.exceptions]
    return description


def setup_logging(
    level: str, json: bool, service: str, instance: str, version: str = "", stream: TextIO | None = None
) -> None:
    """Route structlog and the standard library's logging to one handler.

    Args:
        level: "debug", "info", "warning" or "error", for our own loggers; libraries log warnings and worse.
        json: one JSON object per line, else text for people.
        service, instance, version: shown on every line.
        stream: standard error by default.
    """

    def add_identity(_logger: object, _method: str, event: Event) -> Event:
        event.update(service=service, instance=instance)
        if version:
            event["version"] = version
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_identity,
        _render_error,
        withhold,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_first_line, structlog.stdlib.ExtraAdder(), _without_colours, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    # Off and on: it does nothing when it was on before, even if somebody has put back the hook since.
    logging.captureWarnings(False)
    logging.captureWarnings(True)


def withhold(_logger: object, _method: str, event: Event) -> Event:
    """Processor: replace what must not be logged, shorten what is too long."""
    for key, value in event.items():
        if key in WITHHELD_FIELDS:
            event[key] = WITHHELD
        elif isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"<{len(value)} bytes>"
        elif isinstance(value, str) and len(value) > MAX_FIELD_CHARS:
            event[key] = value[:MAX_FIELD_CHARS] + "…"
    return event


def _render_error(_logger: object, _method: str, event: Event) -> Event:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["error"] = describe_error(error)
    return event


def _first_line(_logger: object, _method: str, event: Event) -> Event:
    """Later lines of a foreign record are tracebacks and reprs, which may quote user content."""
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        if record.exc_info:
            event["exc_info"] = record.exc_info
        record.exc_info = record.exc_text = record.stack_info = None
    event["event"] = str(event.get("event", "")).partition("\n")[0]
    return event


def _without_colours(_logger: object, _method: str, event: Event) -> Event:
    """uvicorn gives each message a second time, with escape codes."""
    event.pop("color_message", None)
    return event
