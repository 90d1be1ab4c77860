"""One child process: in a session of its own, dead with its launcher, its output in a bounded log."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from omnistage.launcher.faults import StartFailed
from omnistage.launcher.logs import RotatingLog

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h. The signal comes when the *thread* that forked ends: children are started on the main thread."""

_READ_BYTES = 64 * 1024
_LAST_WORDS_S = 0.5


@dataclass(frozen=True)
class ChildSpec:
    """What to start.

    Attributes:
        command: program and arguments.
        environment: the whole environment.
        instance: name in presences and metrics; another one at each start.
        pass_fds: file descriptors that the child inherits.
        metrics_port: where the child was told to show its metrics.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    instance: str
    pass_fds: tuple[int, ...] = ()
    metrics_port: int | None = None


class Child:
    """A started process. `wait` must run for as long as it lives: it also carries its output to the log."""

    def __init__(self, process: Process, output: BinaryIO, log: RotatingLog) -> None:
        self._process = process
        self._output = output
        self._log = log

    @classmethod
    async def spawn(cls, spec: ChildSpec, log_path: Path) -> Child:
        """Start a child.

        Raises:
            StartFailed: there is no such program, or no more processes can be had.
        """
        # A pipe of our own: with asyncio's, `Process.wait` would go on for as long as a grandchild holds it open.
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=dict(spec.environment),
                pass_fds=spec.pass_fds,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except OSError as error:
            os.close(reading)
            raise StartFailed(f"{spec.command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(writing)
        return cls(process, os.fdopen(reading, "rb", buffering=0), RotatingLog(log_path))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Exit code (negative: the signal), once the process and all that it started are gone."""
        try:
            async with asyncio.TaskGroup() as group:
                output = group.create_task(self._carry_output())
                try:
                    code = await self._process.wait()
                except asyncio.CancelledError:
                    self.kill()
                    await self._process.wait()
                    raise
                finally:
                    self.kill()
                await asyncio.wait({output}, timeout=_LAST_WORDS_S)
                output.cancel()
        finally:
            self._log.close()
        return code

    def terminate(self) -> None:
        """Ask it to finish: SIGTERM to the process alone, which sees to its own children."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to it and to everything that it started and that stayed in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _carry_output(self) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._output
        )
        try:
            while data := await reader.read(_READ_BYTES):
                self._log.write(data)
        finally:
            transport.close()


def _die_with_parent() -> Callable[[], None] | None:
    """Runs in the child before exec: have the kernel kill it when this thread is gone, however that goes."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm
