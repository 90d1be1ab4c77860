"""/metrics, /health and /ready of a service, in a thread, so that they answer while the event loop is busy."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from omnistage.errors import ConfigError
from omnistage.observability.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Check = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and what to show."""


class MetricsServer:
    """Serves a process's metrics and states over HTTP from `start` to `close`.

    Args:
        metrics: what /metrics shows.
        health: /health answers 200 while it says True, else 503.
        ready: the same for /ready.
    """

    def __init__(self, metrics: Metrics, health: Check, ready: Check) -> None:
        self._metrics = metrics
        self._checks = {"/health": health, "/ready": ready}
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is served; raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("the metrics server is not running")
        return self._server.server_port

    def start(self, host: str, port: int) -> None:
        """Listen; port 0 chooses a free one.

        Raises:
            ConfigError: the address cannot be used.
        """
        try:
            self._server = make_server(host, port, self._answer, _Server, _Quiet)
        except OSError as error:
            raise ConfigError(f"metrics cannot be served on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
        elif path == "/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE, self._metrics.render()
        elif path in self._checks:
            good, facts = self._checks[path]()
            status = "200 OK" if good else "503 Service Unavailable"
            kind, body = "application/json", json.dumps(facts).encode()
        else:
            status, kind, body = "404 Not Found", "text/plain", b"/metrics, /health, /ready\n"
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a log line each."""

    def address_string(self) -> str:
        return str(self.client_address[0])
