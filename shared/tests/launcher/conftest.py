"""Small real processes in the place of the services: they announce themselves on a real broker, and load no model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from omnistage.launcher.folder import DataFolder

SERVICE = '''
"""A service that is nothing but its life: presence on the bus, SIGTERM, and what the test asks of it."""
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from omnistage.contracts import EngineStatus
from omnistage.runtime.presence import Announcer
from omnistage.transport.connect import connect

NAME = "{name}"
orders = Path(os.environ["FAKE_ORDERS"])
if (orders / f"{{NAME}}-exit").exists():
    print(f"{{NAME}} cannot start: so it was ordered", flush=True)
    sys.exit(int((orders / f"{{NAME}}-exit").read_text()))
if (orders / f"{{NAME}}-grandchild").exists():
    subprocess.Popen(["sleep", "300"])


async def main():
    stop = asyncio.Event()
    if not (orders / f"{{NAME}}-deaf").exists():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    env = os.environ
    bus = await connect(env["OMNISTAGE_BUS_URL"], env["OMNISTAGE_NAMESPACE"], name=env["OMNISTAGE_INSTANCE"],
                        user=env["OMNISTAGE_BUS_USER"], password=env["OMNISTAGE_BUS_PASSWORD"])
    ready = not (orders / f"{{NAME}}-slow").exists()
    engines = [] if NAME == "gateway" else [EngineStatus(engine="e", ready=ready, detail="reading weights", slots=4,
                                                         running=("r1",), queue=2)]
    announcer = Announcer(bus, service=NAME, instance=env["OMNISTAGE_INSTANCE"], version=env.get("FAKE_VERSION", "9.9"),
                          engines=lambda: engines, running=lambda: ("r1", "r2"))
    announcer.state = "ready" if ready else "starting"
    threads, keys = env["OMP_NUM_THREADS"] + " " + env["OMP_WAIT_POLICY"], env.get("OMNISTAGE_API_KEYS")
    print(f"{{NAME}} threads={{threads}} keys={{keys}}", flush=True)
    if NAME == "gateway":
        import socket
        listening = socket.socket(fileno=int(env["OMNISTAGE_LISTEN_FD"]))

        async def answer(reader, writer):
            await reader.readuntil(b"\\r\\n\\r\\n")
            body = str(os.getpid()).encode()
            head = b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
            writer.write(head + body)
            await writer.drain()
            writer.close()

        await asyncio.start_server(answer, sock=listening)
    speaking = asyncio.ensure_future(announcer.run())
    await stop.wait()
    speaking.cancel()
    await bus.close()


asyncio.run(main())
'''

MODELS = """
version: 1
engines:
  t: {service: talker, engine: none}
  c: {service: codec, engine: none}
models:
  m: {pipeline: speech, nodes: {talker: t, codec: c}, default_voice: v, voices: {v: v}}
"""


class Launched:
    """A launcher under test, with a data folder of its own."""

    def __init__(self, folder: Path, arguments: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.output = folder / "out.txt"
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "PYTHONPATH": str(self.folder / "fakes"),
            "FAKE_ORDERS": str(self.folder),
            "OMNISTAGE_API_KEYS": "secret",
            "COLUMNS": "200",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "omnistage.launcher", *arguments, "--data", str(self.data)]

    def order(self, name: str, value: str = "") -> None:
        """Tell the fake services how to behave."""
        (self.folder / name).write_text(value)

    def countermand(self, name: str) -> None:
        (self.folder / name).unlink()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = self.command("up", "--models", str(self.folder / "models.yaml"), "--port", "0", *arguments)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        return self.process

    def until_ready(self) -> str:
        """Address of the started system."""
        assert self.process is not None
        process = self.process
        self.wait_for(lambda: "is ready: " in self.said() or process.poll() is not None, 60)
        assert "is ready: " in self.said(), self.said()
        return self.said().rpartition("is ready: ")[2].split("/v1")[0]

    def said(self) -> str:
        return self.output.read_text()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.run("status", "--json").stdout))

    def of_service(self, service: str) -> list[dict[str, Any]]:
        return [process for process in self.status()["processes"] if process["service"] == service]

    def processes(self) -> list[psutil.Process]:
        """Everything that runs and was started from the data folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("_OMNISTAGE_DATA") == str(self.data) and process.status() != "zombie":
                    found.append(process)
        return found

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        for process in self.processes():
            process.kill()
        for folder in (DataFolder(self.data).arena, DataFolder(self.data).sockets):
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def gone(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    @staticmethod
    def wait_for(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout_s} s")
            time.sleep(0.05)


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    for name in ("gateway", "talker", "codec"):
        package = tmp_path / "fakes" / f"omnistage_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(textwrap.dedent(SERVICE.format(name=name)))
    (tmp_path / "models.yaml").write_text(MODELS)
    launcher = Launched(tmp_path)
    yield launcher
    launcher.end()
