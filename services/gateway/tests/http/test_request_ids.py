"""Ids that clients give to their requests, whatever they hold."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer
from starlette.types import Receive, Scope, Send

from omnistage.observability import Metrics, Tracing
from omnistage_gateway.middleware import Observe


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["state"]["request_id"].encode()})


@given(st.binary(max_size=160) | st.text(alphabet="aZ09_.:-/\\ \t,;\r\n", max_size=140).map(str.encode))
async def test_an_id_is_given_back_whole_or_not_at_all(given_id: bytes) -> None:
    """It breaks no header and no log line, and never is the id by which the system knows the request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    observed = Observe(app, Metrics("gateway", "test"), Tracing(NoOpTracer()), lambda scope: None)
    await observed({"type": "http", "method": "GET", "headers": [(b"x-request-id", given_id)]}, receive, send)
    (shown,) = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    own = sent[1]["body"]
    assert re.fullmatch(rb"[0-9a-f]{32}", own)
    assert shown in (given_id, own)
    assert re.fullmatch(rb"[A-Za-z0-9_.:-]{1,128}", shown)
