"""Keeps processes running: starts, restarts with backoff, stops; one task per place ("slot") of a process.

Exit code 3 means that a start failed for a reason that a restart does not change (a wrong setting, a missing
checkpoint): such a process is not started again, unless it has served before, and then only a few times. Any other
exit that nobody asked for is followed by a restart: at once the first time, then ever later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from omnistage.launcher.faults import StartFailed
from omnistage.launcher.process import Child, ChildSpec

EXIT_FAILED_START = 3

SlotState = Literal["starting", "running", "waiting", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class RestartPolicy:
    """When a process is started again.

    Attributes:
        first_delay_s, factor, longest_delay_s: waits between an exit and the next start.
        steady_s: after running this long the count begins anew.
        starts_before_ready: unexpected exits before it has served once, after which it counts as failed.
        failed_starts_after_ready: exits with code 3 in a row, of a process that has served, after which it is failed.
    """

    first_delay_s: float = 0.1
    factor: float = 2.0
    longest_delay_s: float = 10.0
    steady_s: float = 5.0
    starts_before_ready: int = 5
    failed_starts_after_ready: int = 3

    def delay_s(self, crashes: int) -> float:
        """Wait after the given number of exits in a row (1 for the first)."""
        return min(self.first_delay_s * self.factor ** min(crashes - 1, 30), self.longest_delay_s)


@dataclass
class Slot:
    """A place for one process.

    Attributes:
        name: also the name of its log, e.g. "talker-1".
        service: what it belongs to, e.g. "talker".
        instance, pid, started: of the process that runs now; started in unix seconds.
        metrics_port: where it shows its metrics; None for the servers.
        restarts: how often it was started again.
        last_exit: exit code of the process before; negative for a signal.
        served: whether it has ever been seen ready.
        speaks: whether it announces itself on the bus.
        reason: how it ended last, in words.
        log_start: size of its log when the process that ran last was started, in bytes.
        policy: when it is started again.
    """

    name: str
    service: str
    make: Callable[[], ChildSpec]
    state: SlotState = "starting"
    instance: str = ""
    pid: int | None = None
    started: float = 0.0
    metrics_port: int | None = None
    restarts: int = 0
    last_exit: int | None = None
    served: bool = False
    speaks: bool = True
    reason: str = ""
    log_start: int = 0
    policy: RestartPolicy = field(default_factory=RestartPolicy, repr=False)
    child: Child | None = field(default=None, repr=False)
    asked_to_stop: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


class Supervisor:
    """The processes of a system. Its tasks live in the task group given; `stop` ends them all."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        logs: Path,
        policy: RestartPolicy | None = None,
        on_exit: Callable[[Slot], None] | None = None,
    ) -> None:
        """
        Args:
            on_exit: called when a process is gone, for whatever reason, while the slot still bears its names.
        """
        self._group = group
        self._logs = logs
        self._policy = policy or RestartPolicy()
        self._on_exit = on_exit
        self.slots: dict[str, Slot] = {}
        self.failure = asyncio.Event()
        """Set when a slot has failed for good."""

    def start(
        self,
        name: str,
        service: str,
        make: Callable[[], ChildSpec],
        *,
        speaks: bool = True,
        policy: RestartPolicy | None = None,
    ) -> Slot:
        """Fill a new slot; `make` is called before each start of its process, `policy` replaces the common one."""
        assert name not in self.slots
        slot = Slot(name, service, make, speaks=speaks, policy=policy or self._policy)
        self.slots[name] = slot
        self._group.create_task(self._keep(slot), name=f"keep {name}")
        return slot

    def of_service(self, service: str) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.service == service]

    def failed(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.state == "failed"]

    async def stop(self, slots: list[Slot], grace_s: float) -> None:
        """Stop processes side by side: SIGTERM, SIGKILL after the grace time; their slots are gone then."""
        async with asyncio.TaskGroup() as group:
            for slot in slots:
                group.create_task(self._stop(slot, grace_s))

    def kill_all(self) -> None:
        """SIGKILL to all at once; whoever waits for them to stop goes on sooner."""
        for slot in self.slots.values():
            slot.asked_to_stop.set()
            if slot.child is not None:
                slot.child.kill()

    async def _stop(self, slot: Slot, grace_s: float) -> None:
        slot.asked_to_stop.set()
        if slot.child is not None:
            slot.state = "stopping"
            slot.child.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await slot.ended.wait()
        except TimeoutError:
            if slot.child is not None:
                slot.child.kill()
            await slot.ended.wait()
        self.slots.pop(slot.name, None)

    async def _keep(self, slot: Slot) -> None:
        crashes = failed_starts = 0
        try:
            while not slot.asked_to_stop.is_set():
                lived_s = await self._run(slot)
                if slot.asked_to_stop.is_set():
                    break
                crashes = 1 if lived_s > slot.policy.steady_s else crashes + 1
                failed_starts = failed_starts + 1 if slot.last_exit == EXIT_FAILED_START else 0
                if self._give_up(slot, crashes, failed_starts):
                    return
                await self._pause(slot, slot.policy.delay_s(crashes))
            slot.state = "stopped"
        finally:
            slot.ended.set()

    async def _run(self, slot: Slot) -> float:
        """Run the process once; seconds that it lived."""
        spec = slot.make()
        slot.instance, slot.started, slot.state = spec.instance, time.time(), "starting"
        slot.metrics_port = spec.metrics_port
        log = self._logs / f"{slot.name}.log"
        slot.log_start = log.stat().st_size if log.exists() else 0
        try:
            slot.child = await Child.spawn(spec, log)
        except StartFailed as error:
            slot.last_exit, slot.reason = EXIT_FAILED_START, error.message
            return 0.0
        slot.pid, slot.state = slot.child.pid, "running"
        if slot.asked_to_stop.is_set():
            slot.child.terminate()
        try:
            slot.last_exit = await slot.child.wait()
        finally:
            slot.child = None
            if self._on_exit is not None:
                self._on_exit(slot)
            slot.pid = None
        slot.reason = _describe(slot.last_exit)
        return time.time() - slot.started

    def _give_up(self, slot: Slot, crashes: int, failed_starts: int) -> bool:
        if slot.served:
            hopeless = failed_starts >= slot.policy.failed_starts_after_ready
        else:
            hopeless = failed_starts > 0 or crashes >= slot.policy.starts_before_ready
        if hopeless:
            slot.state = "failed"
            self.failure.set()
        return hopeless

    async def _pause(self, slot: Slot, delay_s: float) -> None:
        slot.state = "waiting"
        try:
            async with asyncio.timeout(delay_s):
                await slot.asked_to_stop.wait()
        except TimeoutError:
            slot.restarts += 1


def _describe(code: int) -> str:
    if code == EXIT_FAILED_START:
        return "could not start (exit code 3)"
    return f"was killed by signal {-code}" if code < 0 else f"left with exit code {code}"
