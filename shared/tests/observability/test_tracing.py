"""One trace through several services; errors by code; nothing recorded when it is off."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from omnistage.errors import StageFailed
from omnistage.observability import extract, inject, names, setup_tracing


def _spans(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_services_share_a_trace_through_headers(tmp_path: Path) -> None:
    path = tmp_path / "spans" / "all.jsonl"
    gateway = setup_tracing("gateway", "g1", "0.1.0", f"file:{path}")
    codec = setup_tracing("codec", "c1", "0.1.0", f"file:{path}")
    headers: dict[str, str] = {}
    with gateway.span(names.SPAN_REQUEST, {names.ATTR_REQUEST_ID: "r1"}):
        inject(headers)
        # What a client of the broker may do to header names:
        shouted = {key.title(): value for key, value in headers.items()}
        with codec.span(names.SPAN_WORK, parent=extract(shouted)), codec.span("inner"):
            assert len(_spans(path)) == 0
    engine, work, request = _spans(path)
    assert engine["parent_id"] == work["context"]["span_id"]
    assert work["parent_id"] == request["context"]["span_id"]
    assert request["parent_id"] is None
    assert len({span["context"]["trace_id"] for span in (engine, work, request)}) == 1
    assert request["attributes"] == {"omnistage.request_id": "r1"}
    assert work["resource"]["attributes"]["service.name"] == "codec"
    assert work["resource"]["attributes"]["service.instance.id"] == "c1"
    gateway.close()
    codec.close()


def test_an_error_is_recorded_by_code_alone(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    tracing = setup_tracing("codec", "c1", "0", f"file:{path}")
    with pytest.raises(StageFailed), tracing.span(names.SPAN_WORK):
        raise StageFailed("the canary sings")
    with pytest.raises(ValueError, match="canary"), tracing.span(names.SPAN_WORK):
        raise ValueError("the canary sings")
    ours, foreign = _spans(path)
    assert ours["status"] == {"status_code": "ERROR", "description": StageFailed.code}
    assert foreign["attributes"][names.ATTR_OUTCOME] == "ValueError"
    assert "canary" not in path.read_text(encoding="utf-8")
    tracing.close()


def test_cancellation_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    tracing = setup_tracing("codec", "c1", "0", f"file:{path}")
    with pytest.raises(asyncio.CancelledError), tracing.span(names.SPAN_WORK):
        raise asyncio.CancelledError
    (span,) = _spans(path)
    assert span["status"]["status_code"] == "UNSET"
    assert span["attributes"][names.ATTR_OUTCOME] == "cancelled"
    tracing.close()


def test_the_current_span_is_restored(tmp_path: Path) -> None:
    tracing = setup_tracing("codec", "c1", "0", f"file:{tmp_path / 'spans.jsonl'}")
    before = trace.get_current_span()
    with tracing.span("outer") as outer:
        with tracing.span("inner"):
            pass
        assert trace.get_current_span() is outer
        loose = tracing.begin("loose")
        assert trace.get_current_span() is outer
        loose.end()
    assert trace.get_current_span() is before
    tracing.close()


def test_switched_off_it_records_nothing_but_passes_context_on() -> None:
    tracing = setup_tracing("codec", "c1", "0", None)
    incoming = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    outgoing: dict[str, str] = {}
    with tracing.span(names.SPAN_WORK, parent=extract(incoming)) as span:
        assert not span.is_recording()
        inject(outgoing)
    assert outgoing == incoming
    tracing.close()


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": "00-0-0-01"}])
def test_missing_or_broken_context_starts_a_new_trace(headers: dict[str, str], tmp_path: Path) -> None:
    tracing = setup_tracing("codec", "c1", "0", f"file:{tmp_path / 'spans.jsonl'}")
    with tracing.span("one", parent=extract(headers)) as span:
        assert span.get_span_context().is_valid
    assert _spans(tmp_path / "spans.jsonl")[0]["parent_id"] is None
    tracing.close()


def test_spans_are_sent_to_a_collector_over_http() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        tracing = setup_tracing("codec", "c1", "0", f"http://127.0.0.1:{server.server_port}")
        with tracing.span("visible-name"):
            pass
        tracing.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert len(body) > 50
