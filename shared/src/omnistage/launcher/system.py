"""A running system: broker and tensor server first, then all services side by side, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from omnistage import __version__
from omnistage.config import ModelsFile
from omnistage.errors import ConfigError
from omnistage.launcher.control import serve_control
from omnistage.launcher.deployment import Deployment, arena_mb, check_scale, threads_each
from omnistage.launcher.display import Display
from omnistage.launcher.faults import StartFailed
from omnistage.launcher.fleet import Fleet
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.internal import THIS_MACHINE, Internal
from omnistage.launcher.listening import address_of
from omnistage.launcher.logs import tail
from omnistage.launcher.process import ChildSpec
from omnistage.launcher.reaper import Reaper
from omnistage.launcher.report import report
from omnistage.launcher.servers import BROKER_USER, Broker, TensorServer
from omnistage.launcher.state import State, write_state
from omnistage.launcher.supervisor import RestartPolicy, Slot, Supervisor
from omnistage.pipelines import GATEWAY
from omnistage.transport import Bus
from omnistage.transport.connect import connect
from omnistage.transport.topology import Topology

NAMESPACE = "omni"
SERVICE_GRACE_S = 3.0
SERVER_GRACE_S = 0.75
_SERVER_START_S = 20.0
_SERVER_LOOK_S = 0.02
_SERVER_RESTARTS = RestartPolicy(longest_delay_s=1.0)
"""All requests wait while a server is away."""
_LOOK_S = 0.2
_LEAVE_S = 0.5
_SCALE_DOWN_S = 35.0
"""A service drains for up to 30 s by default."""

_LAST_LINES = 12


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        files: the models file and its overlays; empty for the default one.
        counts: instances of each service, the gateway included.
        ready_s: how long every model may take to become ready.
        internal: where the servers listen for services on other hosts.
    """

    models: ModelsFile
    files: tuple[Path, ...]
    counts: Mapping[str, int]
    ready_s: float
    internal: Internal = THIS_MACHINE


class System:
    """Owns all processes; lives in the task group given."""

    def __init__(
        self, group: asyncio.TaskGroup, folder: DataFolder, listening: socket.socket, plan: Plan, display: Display
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._listening = listening
        self._display = display
        self._supervisor = Supervisor(group, folder.logs, on_exit=self._gone)
        self._fleet: Fleet | None = None
        self._reaper: Reaper | None = None
        self._deployment: Deployment | None = None
        self._servers: list[Slot] = []
        self._pythons: dict[str, str] = {}
        self._counts = dict(plan.counts)
        self._scaling = asyncio.Lock()
        self._ready = False
        self.stop_asked = asyncio.Event()

    @property
    def address(self) -> str:
        return address_of(self._listening)

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Start everything, call `on_ready` once every model is ready, then run until cancelled.

        Raises:
            StartFailed: a process could not start, or not everything was ready in time.
        """
        async with AsyncExitStack() as stack:
            broker = Broker(self._folder, self._plan.internal)
            tensors = TensorServer(self._folder, self._plan.internal, broker.password)
            await self._start_server("nats", broker.spec, broker.answers)
            await self._start_server("tensors", tensors.spec, tensors.answers)
            self._deployment = self._deploy(broker, tensors)
            control = str(self._folder.sockets / "control.sock")
            await stack.enter_async_context(serve_control(control, self._operations()))
            write_state(self._folder, self._state(self._deployment, control, tensors.far_url))
            bus = await connect(broker.url, NAMESPACE, name="launcher", user=BROKER_USER, password=broker.password)
            stack.push_async_callback(_leave, bus)
            self._reaper = Reaper(bus)
            stack.push_async_callback(self._reaper.close)
            await self._reaper.clear()
            engines = self._plan.models.engines.items()
            await bus.prune(Topology.of(NAMESPACE, ((spec.service, key) for key, spec in engines)))
            self._fleet = Fleet(bus, NAMESPACE)
            await self._fleet.watch()
            for service, count in self._plan.counts.items():
                for number in range(1, count + 1):
                    self._start(service, number)
            await self._until_ready()
            on_ready()
            self._ready = True
            await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop the services, then the servers. Within 5 s, whatever they do."""
        services = [slot for slot in self._supervisor.slots.values() if slot not in self._servers]
        await self._supervisor.stop(services, SERVICE_GRACE_S)
        await self._supervisor.stop(self._servers, SERVER_GRACE_S)

    def hurry(self) -> None:
        """Stop waiting for anybody."""
        self._supervisor.kill_all()

    def reports(self) -> list[dict[str, Any]]:
        """One report for each process, in the order of their start."""
        return [report(slot, self._fleet) for slot in self._supervisor.slots.values()]

    async def scale(self, service: str, count: int) -> int:
        """Start or drain instances of a service until `count` run and are ready; returns how many ran before.

        Raises:
            ConfigError: no such service, or a count out of range.
            StartFailed: a new instance failed, or was not ready in time.
        """
        check_scale(service, count, tuple(self._plan.counts))
        async with self._scaling:
            self._counts[service] = count
            slots = self._supervisor.of_service(service)
            for slot in [slot for slot in slots if slot.state == "failed"]:
                await self._supervisor.stop([slot], 0.0)
                slots.remove(slot)
            if len(slots) > count:
                await self._supervisor.stop(slots[count:], _SCALE_DOWN_S)
            new = [self._start(service, self._free_number(service)) for _ in range(count - len(slots))]
            await self._until(lambda: all(self._is_ready(slot) for slot in new), new)
            return len(slots)

    async def replace(self, name: str, python: str | None = None) -> str:
        """Start a new instance in the place of one, and drain the old one once the new one is ready.

        Args:
            python: the interpreter that it runs in, and from then on all that are started for its service; None for
                the one in use.

        Returns:
            The new instance's place.

        Raises:
            ConfigError: there is no such instance of a service.
            StartFailed: the new instance failed or was not ready in time; it is gone, the old one goes on.
        """
        async with self._scaling:
            old = self._supervisor.slots.get(name)
            if old is None or old.service not in self._plan.counts:
                raise ConfigError(f"there is no instance {name!r} of a service here")
            new = self._start(old.service, self._free_number(old.service), python)
            try:
                await self._until(lambda: self._is_ready(new), [new])
            except StartFailed:
                await self._supervisor.stop([new], 0.0)
                raise
            if python is not None:
                self._pythons[old.service] = python
            await self._supervisor.stop([old], _SCALE_DOWN_S)
            return new.name

    def _free_number(self, service: str) -> int:
        taken = self._supervisor.slots
        return next(number for number in itertools.count(1) if f"{service}-{number}" not in taken)

    async def _start_server(
        self, name: str, make: Callable[[], ChildSpec], answers: Callable[[], Awaitable[bool]]
    ) -> None:
        slot = self._supervisor.start(name, name, make, speaks=False, policy=_SERVER_RESTARTS)
        self._servers.append(slot)
        self._show()
        deadline = time.monotonic() + _SERVER_START_S
        while not await answers():
            self._check_failed([slot])
            if time.monotonic() > deadline:
                raise StartFailed(f"{name} does not answer; its last words:\n{self._last_words(slot)}")
            await asyncio.sleep(_SERVER_LOOK_S)
        slot.served = True
        self._show()

    def _deploy(self, broker: Broker, tensors: TensorServer) -> Deployment:
        host, port = self._listening.getsockname()[:2]
        return Deployment(
            folder=self._folder,
            models=self._plan.files,
            namespace=NAMESPACE,
            host=host,
            port=port,
            listening_fd=self._listening.fileno(),
            bus_url=broker.url,
            bus_user=BROKER_USER,
            bus_password=broker.password,
            redis_url=tensors.url,
            arena_mb=arena_mb(self._folder, self._plan.counts),
        )

    def _state(self, deployment: Deployment, control: str, tensors_url: str) -> State:
        return State(
            pid=os.getpid(),
            started=time.time(),
            version=__version__,
            address=self.address,
            control=control,
            namespace=NAMESPACE,
            bus_url=deployment.bus_url,
            bus_user=deployment.bus_user,
            bus_password=deployment.bus_password,
            redis_url=deployment.redis_url,
            arena=str(self._folder.arena),
            models=tuple(str(path) for path in deployment.models),
            tensors_url=tensors_url,
        )

    def _start(self, service: str, number: int, python: str | None = None) -> Slot:
        assert self._deployment is not None
        deployment, used = self._deployment, python or self._pythons.get(service, sys.executable)

        def make() -> ChildSpec:
            # Asked at every start, so that one after `scale` follows the new counts.
            instances = sum(self._counts.values()) - self._counts[GATEWAY]
            return deployment.spec(service, number, used, threads=threads_each(instances))

        return self._supervisor.start(f"{service}-{number}", service, make)

    async def _until_ready(self) -> None:
        services = [slot for slot in self._supervisor.slots.values() if slot not in self._servers]
        await self._until(lambda: all(self._is_ready(slot) for slot in services), services)
        async with httpx.AsyncClient() as client:
            deadline = time.monotonic() + self._plan.ready_s
            while not await self._gateway_ready(client):
                self._check_failed(services)
                if time.monotonic() > deadline:
                    raise StartFailed(f"not every model is ready after {self._plan.ready_s:.0f} s")
                await asyncio.sleep(_LOOK_S)

    async def _until(self, done: Callable[[], bool], slots: list[Slot]) -> None:
        """Wait for a condition on processes, showing how they do. Raises StartFailed if one fails meanwhile."""
        deadline = time.monotonic() + self._plan.ready_s
        while not done():
            self._check_failed(slots)
            self._show()
            if time.monotonic() > deadline:
                waiting = ", ".join(
                    f"{slot.name} ({report(slot, self._fleet)['detail'] or slot.state})"
                    for slot in slots
                    if not self._is_ready(slot)
                )
                raise StartFailed(f"not ready after {self._plan.ready_s:.0f} s: {waiting}")
            await asyncio.sleep(_LOOK_S)
        self._show()

    def _is_ready(self, slot: Slot) -> bool:
        ready: bool = report(slot, self._fleet)["state"] == "ready"
        slot.served = slot.served or ready
        return ready

    async def _gateway_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            response = await client.get(f"{self.address}/ready", timeout=5.0)
        except httpx.TransportError:
            return False
        return response.status_code == 200

    def _check_failed(self, slots: list[Slot]) -> None:
        for slot in slots:
            if slot.state == "failed":
                raise StartFailed(f"{slot.name} {slot.reason}; its last words:\n{self._last_words(slot)}")

    def _last_words(self, slot: Slot) -> str:
        path = self._folder.logs / f"{slot.name}.log"
        return "\n".join(f"  {line}" for line in tail(path, _LAST_LINES, slot.log_start)) + f"\n(all of it: {path})"

    def _show(self) -> None:
        if not self._ready:
            self._display.update(self.reports())

    def _gone(self, slot: Slot) -> None:
        if self._fleet is None or self._reaper is None or not slot.speaks:
            return
        self._is_ready(slot)
        self._reaper.died(slot.service, slot.instance, self._fleet.last_running(slot.instance))
        self._fleet.forget(slot.instance)

    def _operations(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        async def status(_: dict[str, Any]) -> dict[str, Any]:
            for slot in self._supervisor.slots.values():
                self._is_ready(slot)
            return {"ready": self._ready, "address": self.address, "pid": os.getpid(), "processes": self.reports()}

        async def scale(request: dict[str, Any]) -> dict[str, Any]:
            return {"before": await self.scale(str(request["service"]), int(request["count"]))}

        async def replace(request: dict[str, Any]) -> dict[str, Any]:
            python = request.get("python")
            return {"by": await self.replace(str(request["name"]), None if python is None else str(python))}

        async def stop(_: dict[str, Any]) -> dict[str, Any]:
            self.stop_asked.set()
            return {}

        return {"status": status, "scale": scale, "replace": replace, "stop": stop}


async def _leave(bus: Bus) -> None:
    """Leave a broker that may be dead already: no stop waits for it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_S):
            await bus.close()
