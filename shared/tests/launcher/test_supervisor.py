"""Supervision of small scripts: backoff, giving up, stopping."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from omnistage.launcher.process import ChildSpec
from omnistage.launcher.supervisor import RestartPolicy, Slot, Supervisor

QUICK = RestartPolicy(first_delay_s=0.02, starts_before_ready=4, failed_starts_after_ready=3)


def script(code: str) -> Callable[[], ChildSpec]:
    return lambda: ChildSpec((sys.executable, "-c", code), {}, "an-instance")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_the_first_restart_is_quick_and_waits_grow_to_a_limit() -> None:
    policy = RestartPolicy()
    delays = [policy.delay_s(crashes) for crashes in range(1, 12)]
    assert delays[0] < 0.3
    assert delays == sorted(delays)
    assert delays[1] == 2 * delays[0]
    assert delays[-1] == policy.longest_delay_s
    assert policy.delay_s(100_000) == policy.longest_delay_s


async def test_crashes_are_restarted_until_the_policy_gives_up(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK)
        slot = supervisor.start("x-1", "x", script("print('here', flush=True); raise SystemExit(5)"))
        await supervisor.failure.wait()
        assert (slot.state, slot.restarts, slot.last_exit, slot.pid) == ("failed", 3, 5, None)
        assert slot.reason == "left with exit code 5"
        assert supervisor.failed() == [slot]
        assert (tmp_path / "x-1.log").read_text() == "here\n" * 4


async def test_one_that_has_served_is_restarted_for_ever(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK)
        slot = supervisor.start("x-1", "x", script("raise SystemExit(5)"))
        slot.served = True
        await until(lambda: slot.restarts >= 6)
        assert slot.state != "failed"
        await supervisor.stop([slot], 1.0)


async def test_a_place_may_have_a_policy_of_its_own(tmp_path: Path) -> None:
    patient = RestartPolicy(first_delay_s=1000, longest_delay_s=1000)
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, patient)
        slot = supervisor.start("x-1", "x", script("raise SystemExit(5)"), policy=QUICK)
        await supervisor.failure.wait()
        assert (slot.state, slot.restarts) == ("failed", 3)


async def test_exit_code_3_is_final_before_and_rare_after_serving(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK)
        new = supervisor.start("new", "x", script("raise SystemExit(3)"))
        old = supervisor.start("old", "x", script("raise SystemExit(3)"))
        old.served = True
        await until(lambda: len(supervisor.failed()) == 2)
        assert (new.restarts, old.restarts) == (0, 2)
        assert new.reason == "could not start (exit code 3)"


async def test_a_program_that_does_not_exist_is_a_failed_start(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK)
        slot = supervisor.start("x-1", "x", lambda: ChildSpec(("/no/such/program",), {}, "i"))
        await supervisor.failure.wait()
        assert (slot.state, slot.restarts) == ("failed", 0)
        assert slot.reason == "/no/such/program cannot be started: No such file or directory"


async def test_stop_is_gentle_first_and_then_not(tmp_path: Path) -> None:
    gentle = "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)));"
    deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    ended: list[tuple[str, int | None]] = []

    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK, lambda slot: ended.append((slot.name, slot.pid)))
        slots = [
            supervisor.start(name, "x", script(f"{code} print('up', flush=True); time.sleep(60)"))
            for name, code in (("gentle", gentle), ("deaf", deaf))
        ]
        pids = {}
        for slot in slots:
            log = tmp_path / f"{slot.name}.log"
            await until(lambda log=log: log.exists() and "up" in log.read_text())  # type: ignore[misc]
            pids[slot.name] = slot.pid
        await supervisor.stop(slots, 0.5)
        assert [(slot.state, slot.last_exit) for slot in slots] == [("stopped", 0), ("stopped", -9)]
        assert supervisor.slots == {}
    assert (tmp_path / "gentle.log").read_text() == "up\nbye\n"
    assert dict(ended) == pids


async def test_stop_does_not_wait_for_a_pause_between_restarts(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, RestartPolicy(first_delay_s=1000, longest_delay_s=1000))
        slot = supervisor.start("x-1", "x", script("raise SystemExit(1)"))
        await until(lambda: slot.state == "waiting")
        async with asyncio.timeout(20):
            await supervisor.stop([slot], 100.0)


async def test_output_of_a_grandchild_does_not_hide_the_exit(tmp_path: Path) -> None:
    """The grandchild holds the output pipe open; it is killed with its group, and the restart is not delayed."""
    code = "import subprocess,os; subprocess.Popen(['sleep', '100']); os.kill(os.getpid(), 9)"
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(group, tmp_path, QUICK)
        begun = time.monotonic()
        slot = supervisor.start("x-1", "x", script(code))
        await supervisor.failure.wait()
        assert slot.last_exit == -9
        assert time.monotonic() - begun < 50


async def test_cancellation_kills_the_children(tmp_path: Path) -> None:
    slot: Slot | None = None

    async def run() -> None:
        nonlocal slot
        async with asyncio.TaskGroup() as group:
            slot = Supervisor(group, tmp_path, QUICK).start("x-1", "x", script("import time; time.sleep(100)"))

    async with asyncio.TaskGroup() as outer:
        task = outer.create_task(run())
        await until(lambda: slot is not None and slot.pid is not None)
        assert slot is not None
        assert slot.pid is not None
        pid: int = slot.pid
        task.cancel()
    await until(lambda: not psutil.pid_exists(pid))
