"""Request ids in and out, one span, one log line and the HTTP metrics of each request. Bodies are never seen here."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

from opentelemetry.trace import Span, SpanKind
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.observability import Metrics, Tracing, extract, get_logger, names, request_context

_log = get_logger(__name__)
_SANE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
CLIENT_GONE = 499
"""Shown in logs and metrics where the client left before an answer began (nginx's number)."""
UNMATCHED = "(unmatched)"


class Observe:
    """Outermost of all.

    `request.state.request_id` is made here, new for every request: it names the request in the whole system, and an
    id may be used only once. A client's own `x-request-id`, when it is sane, is given back and logged beside it.

    Args:
        endpoint_of: pattern of the route that a request will take. The path itself may hold what a client typed, so
            it is neither logged nor a label.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, tracing: Tracing, endpoint_of: Callable[[Scope], str | None]
    ) -> None:
        self._app = app
        self._endpoint_of = endpoint_of
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = uuid.uuid4().hex
        given = headers.get("x-request-id", "")
        shown = given if _SANE_ID.fullmatch(given) else request_id
        scope.setdefault("state", {})["request_id"] = request_id
        parent = extract({key: value for key, value in headers.items() if key in ("traceparent", "tracestate")})
        with (
            request_context(request_id),
            self._tracing.span(names.SPAN_REQUEST, parent=parent, kind=SpanKind.SERVER) as span,
        ):
            span.set_attribute(names.ATTR_REQUEST_ID, request_id)
            await self._watched(scope, receive, send, shown, span)

    async def _watched(self, scope: Scope, receive: Receive, send: Send, shown: str, span: Span) -> None:
        began = time.perf_counter()
        status, sent = CLIENT_GONE, 0
        endpoint = self._endpoint_of(scope) or UNMATCHED
        span.set_attribute(names.ATTR_ENDPOINT, endpoint)
        self._metrics.adjust(names.HTTP_IN_FLIGHT, 1, endpoint=endpoint)

        async def noted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = shown
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - began
            self._metrics.adjust(names.HTTP_IN_FLIGHT, -1, endpoint=endpoint)
            span.set_attribute(names.ATTR_STATUS, status)
            self._metrics.add(names.HTTP_REQUESTS, endpoint=endpoint, status=str(status))
            self._metrics.observe(names.HTTP_SECONDS, seconds, endpoint=endpoint)
            _log.info(
                "request",
                method=scope["method"],
                endpoint=endpoint,
                status=status,
                seconds=round(seconds, 4),
                sent_bytes=sent,
                x_request_id=shown,
                tenant=scope["state"].get("tenant"),
                model=scope["state"].get("model"),
            )
