"""A running system for tests: started by the launcher as a user would, driven over HTTP, inspected on the bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from omnistage.launcher.folder import DataFolder
from omnistage.launcher.state import State, read_state
from omnistage.transport import Bus
from omnistage.transport.connect import connect

READY_S = 240.0
"""Generous: the machine that runs the tests may be busy with other things."""


@dataclass(frozen=True)
class System:
    """A system that is ready."""

    process: subprocess.Popen[str]
    data: Path
    state: State
    traces: Path

    @property
    def url(self) -> str:
        return self.state.address

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, without retries: what fails is to be seen."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 180, **options}
        )

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 180, **options}
        )

    def omnistage(self, *arguments: str, timeout_s: float = 240.0) -> str:
        """Output of a command of the launcher; raises CalledProcessError if it fails."""
        command = [sys.executable, "-m", "omnistage.launcher", *arguments, "--data", str(self.data)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s).stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.omnistage("status", "--json"))
        return status

    def processes(self, service: str) -> list[dict[str, Any]]:
        """What `omnistage status` says of a service's instances."""
        return [entry for entry in self.status()["processes"] if entry["service"] == service]

    def logs(self) -> str:
        """Everything that all processes have logged."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.data.glob("logs/*")))

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A bus of the running system, for looking at what lies there."""
        state = self.state
        bus = await connect(
            state.bus_url, state.namespace, name="test", user=state.bus_user, password=state.bus_password
        )
        try:
            yield bus
        finally:
            await bus.close()


@contextmanager
def running_system(
    folder: Path,
    *,
    scale: str = "",
    environment: Mapping[str, str] | None = None,
    models: str = "",
    options: Sequence[str] = (),
    within: Sequence[str] = (),
) -> Iterator[System]:
    """Start a system on a free port and stop it afterwards, whatever happened.

    Args:
        options: further ones of `omnistage up`.
        within: a command that prepares something and then becomes the command that follows it.
    """
    data, traces = folder / "data", folder / "traces.jsonl"
    command = [*within, sys.executable, "-m", "omnistage.launcher", "up", "--port", "0", "--data", str(data), *options]
    command += ["--scale", scale] if scale else []
    command += ["--models", models] if models else []
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("OMNISTAGE_")}
    given = {"OMNISTAGE_OTLP_ENDPOINT": f"file:{traces}", **(environment or {})}
    with (folder / "up.log").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env={**inherited, **given}
        )
        try:
            state = _wait_until_ready(process, data, folder / "up.log")
            yield System(process, data, state, traces)
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """INT, as Ctrl-C does; whatever does not end of it is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[str], data: Path, log: Path) -> State:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise AssertionError(f"the launcher ended with {process.returncode}:\n{log.read_text()}")
        try:
            state = read_state(DataFolder(data))
            with urllib.request.urlopen(f"{state.address}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return state
        except Exception:  # noqa: BLE001 - whatever keeps it from answering, it is not ready yet
            time.sleep(0.2)
    raise AssertionError(f"not ready after {READY_S:.0f} s:\n{log.read_text()}")


async def settle(seconds: float) -> None:
    """Give what ends in the background its time."""
    await asyncio.sleep(seconds)
