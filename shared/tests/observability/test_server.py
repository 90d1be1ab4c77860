"""The endpoints of a service's own port."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from omnistage.errors import ConfigError
from omnistage.observability import Metrics, MetricsServer


class _State:
    ready: tuple[bool, Mapping[str, Any]] = (False, {"missing": ["heart"]})


@pytest.fixture
def served() -> Iterator[tuple[MetricsServer, _State]]:
    state = _State()
    server = MetricsServer(Metrics("codec", "c1"), lambda: (True, {"version": "1"}), lambda: state.ready)
    server.start("127.0.0.1", 0)
    yield server, state
    server.close()


def _get(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers["Content-Type"], response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def test_metrics(served: tuple[MetricsServer, _State]) -> None:
    status, kind, body = _get(served[0], "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert b'omnistage_build_info{instance="c1"' in body


def test_health_and_ready_follow_their_checks(served: tuple[MetricsServer, _State]) -> None:
    server, state = served
    assert _get(server, "/health") == (200, "application/json", b'{"version": "1"}')
    status, _, body = _get(server, "/ready")
    assert (status, json.loads(body)) == (503, {"missing": ["heart"]})
    state.ready = (True, {})
    assert _get(server, "/ready")[0] == 200


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/", "GET", 404), ("/metrics", "POST", 405), ("/health", "DELETE", 405)]
)
def test_the_rest_is_refused(served: tuple[MetricsServer, _State], path: str, method: str, status: int) -> None:
    assert _get(served[0], path, method)[0] == status


def test_a_client_that_says_nothing_holds_nobody_up(served: tuple[MetricsServer, _State]) -> None:
    with socket.create_connection(("127.0.0.1", served[0].port)):
        assert _get(served[0], "/health")[0] == 200


def test_a_used_port_is_a_config_error(served: tuple[MetricsServer, _State]) -> None:
    other = MetricsServer(Metrics("codec", "c2"), lambda: (True, {}), lambda: (True, {}))
    with pytest.raises(ConfigError, match=str(served[0].port)):
        other.start("127.0.0.1", served[0].port)


def test_closing_frees_port_and_thread() -> None:
    server = MetricsServer(Metrics("codec", "c1"), lambda: (True, {}), lambda: (True, {}))
    before = threading.active_count()
    server.start("127.0.0.1", 0)
    port = server.port
    server.close()
    server.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError):
        _ = server.port
    server.start("127.0.0.1", port)
    server.close()
