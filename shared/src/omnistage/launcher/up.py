"""`omnistage up`: start the system, say so, and keep it until INT, TERM or `omnistage down`."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from omnistage.config import load_models
from omnistage.errors import ConfigError, OmnistageError
from omnistage.launcher.control import ask
from omnistage.launcher.deployment import instance_counts
from omnistage.launcher.display import Display
from omnistage.launcher.examples import examples, ready_line
from omnistage.launcher.faults import LauncherError, StartFailed
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.internal import THIS_MACHINE, Internal, internal_address
from omnistage.launcher.listening import listen
from omnistage.launcher.logs import mark_run
from omnistage.launcher.models_check import explain
from omnistage.launcher.settings import detached_environment
from omnistage.launcher.state import read_state
from omnistage.launcher.system import Plan, System
from omnistage.observability import setup_logging

_DETACHED_LOOK_S = 0.3
_DETACHED_STOP_S = 10.0


@dataclass(frozen=True)
class UpOptions:
    """As given on the command line; `data` need not exist yet."""

    host: str = "127.0.0.1"
    port: int = 8000
    models: tuple[Path, ...] = ()
    data: Path = Path("data")
    scale: Mapping[str, int] = field(default_factory=dict)
    ready_s: float = 300.0
    quiet: bool = False
    internal: Internal = THIS_MACHINE


def up(options: UpOptions, display: Display) -> None:
    """Run a system until it is told to stop.

    Raises:
        OmnistageError: it could not start; whatever had been started is gone again.
    """
    plan = _plan(options)
    setup_logging("warning", json=False, service="launcher", instance="launcher")
    folder = DataFolder(options.data.resolve())
    folder.refuse_second()
    with closing(listen(options.host, options.port)) as listening:
        folder.prepare()
        with folder.hold():
            mark_run(folder.logs)
            fault = asyncio.run(_run(folder, listening, plan, display, quiet=options.quiet))
    if fault is not None:
        raise fault


def _plan(options: UpOptions) -> Plan:
    """What to run. Raises ConfigError for all that is known to fail, before anything starts."""
    files = tuple(path.resolve() for path in options.models)
    models = load_models(files)
    counts = instance_counts(models, options.scale)
    if faults := explain(models).faults:
        raise ConfigError("; ".join(faults))
    internal = options.internal
    if internal.host:
        internal = replace(internal, host=internal_address(internal.host))
    return Plan(models, files, counts, options.ready_s, internal)


async def _run(
    folder: DataFolder, listening: socket.socket, plan: Plan, display: Display, *, quiet: bool
) -> OmnistageError | None:
    """Run a system to its end; what went wrong, if anything did."""
    fault: OmnistageError | None = None
    async with asyncio.TaskGroup() as group:
        system = System(group, folder, listening, plan, display)
        _obey_signals(system)

        async def serve() -> None:
            nonlocal fault
            try:
                await system.serve(lambda: _announce(system, folder, plan, display, quiet=quiet))
            except OmnistageError as error:
                fault = error
                system.stop_asked.set()

        serving = group.create_task(serve())
        await system.stop_asked.wait()
        display.close()
        if fault is None and not quiet:
            display.line("stopping")
        serving.cancel()
        await system.stop()
    return fault


def _announce(system: System, folder: DataFolder, plan: Plan, display: Display, *, quiet: bool) -> None:
    display.close()
    display.line(ready_line(system.address))
    if not quiet:
        display.line(examples(system.address, plan.models, folder.root))


def _obey_signals(system: System) -> None:
    """The first INT or TERM stops the system in order, a second one at once."""

    def stop() -> None:
        if system.stop_asked.is_set():
            system.hurry()
        system.stop_asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, stop)


def up_detached(options: UpOptions, arguments: list[str], display: Display) -> None:
    """Start `omnistage up` in the background and wait until it is ready. Ctrl-C meanwhile stops it again.

    Args:
        arguments: the command line of the launcher in the background, after `omnistage`.

    Raises:
        OmnistageError: it cannot start, or it ended; its output says why.
    """
    _plan(options)
    folder = DataFolder(options.data.resolve())
    folder.refuse_second()
    listen(options.host, options.port).close()
    folder.prepare()
    path = folder.logs / "launcher.log"
    start = path.stat().st_size if path.exists() else 0
    with path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "omnistage.launcher", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=detached_environment(),
            start_new_session=True,
        )
    try:
        _show_until_ready(folder, process, path, start, display)
    except KeyboardInterrupt:
        process.terminate()
        try:
            process.wait(_DETACHED_STOP_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
            folder.clear()
        raise


def _show_until_ready(
    folder: DataFolder, process: subprocess.Popen[bytes], path: Path, start: int, display: Display
) -> None:
    shown = 0
    while True:
        ended = process.poll() is not None
        ready = not ended and _is_ready(folder, process.pid)
        progress, fault = fault_of(path.read_bytes()[start:].decode(errors="replace"))
        if not (ended or ready):
            progress = progress[: progress.rfind("\n") + 1]
        if progress[shown:].strip():
            display.line(progress[shown:].rstrip())
            shown = len(progress)
        if ready:
            return
        if ended:
            raise StartFailed(fault or f"it ended with exit code {process.returncode}")
        time.sleep(_DETACHED_LOOK_S)


def fault_of(said: str) -> tuple[str, str]:
    """What a launcher wrote, in two: how far it came, and its fault without the name of the command ("" for none)."""
    fault = re.search(r"^omnistage: ", said, re.MULTILINE)
    return (said, "") if fault is None else (said[: fault.start()], said[fault.end() :].strip())


def _is_ready(folder: DataFolder, pid: int) -> bool:
    try:
        state = read_state(folder)
        return state.pid == pid and bool(ask(state.control, "status")["ready"])
    except LauncherError:
        return False


def down(data: Path, *, wait_s: float = 10.0) -> str:
    """Stop the system of a data folder and wait until it is gone, or remove what a killed launcher left.

    Returns:
        What was done, in a line.

    Raises:
        NotRunning: none runs, and nothing was left.
        LauncherError: it is still there after the wait.
    """
    folder = DataFolder(data.resolve())
    if not folder.held() and folder.clear():
        return f"nothing ran from {folder.root}; removed what a killed launcher had left"
    state = read_state(folder)
    ask(state.control, "stop")
    end = time.monotonic() + wait_s
    while folder.held():
        if time.monotonic() > end:
            raise LauncherError(f"the launcher (pid {state.pid}) has not ended within {wait_s:.0f} s")
        time.sleep(0.05)
    return "stopped"
