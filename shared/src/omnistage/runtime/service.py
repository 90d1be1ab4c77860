"""The life of a stage's process: start -> ready -> drain -> stop.

Exit codes: 0 stopped as asked, 1 failed while running (a supervisor starts it again), 3 failed to start (it will fail
again: a wrong setting, a missing checkpoint).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from omnistage.config import ModelsFile, ServiceSettings, load_models
from omnistage.errors import BusError, OmnistageError, TensorError
from omnistage.observability import Metrics, get_logger
from omnistage.runtime.claims import CLAIM_TTL_S, CLAIMS_BUCKET, ClaimBook
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.runtime.control import ControlActions, ControlListener
from omnistage.runtime.engines import HostedEngine, Load
from omnistage.runtime.leftovers import forget_ended
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.orphans import OrphanWatch
from omnistage.runtime.presence import Announcer
from omnistage.runtime.tasks import TaskBag
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import STALL_S, Handlers, Worker
from omnistage.tensors.plane import TensorPlane, open_plane
from omnistage.transport import Bus
from omnistage.transport.connect import connect
from omnistage.transport.options import BusOptions
from omnistage.transport.topology import Topology

_log = get_logger(__name__)

EXIT_FAILED_START = 3
EXIT_FAILED = 1
ARENA_WAIT_S = 1.0
"""A full arena is back-pressure: whoever reads it usually makes room within milliseconds, far faster than a detour."""

_SWEEP_S = 5.0
_PARENT_CHECK_S = 0.5


@dataclass(frozen=True)
class Service:
    """What makes a process this service: wired by its bootstrap."""

    name: str
    version: str
    handlers: Handlers
    load: Load


async def open_bus(settings: ServiceSettings, models: ModelsFile) -> Bus:
    """Connect and make sure that the deployment's streams and consumers exist."""
    bus = await connect(
        settings.bus_url,
        settings.namespace,
        name=settings.instance,
        user=settings.bus_user,
        password=settings.bus_password.get_secret_value() if settings.bus_password else None,
        options=BusOptions(replicas=settings.bus_replicas),
    )
    await bus.ensure(Topology.of(settings.namespace, ((spec.service, key) for key, spec in models.engines.items())))
    return bus


async def open_tensors(settings: ServiceSettings) -> TensorPlane:
    """The tensor plane that the settings describe."""
    return await open_plane(
        namespace=settings.namespace,
        instance=settings.instance,
        shm_folder=settings.arena_dir,
        shm_bytes=settings.arena_mb * 2**20,
        redis_url=settings.redis_url.get_secret_value() if settings.redis_url else None,
        full_wait_s=ARENA_WAIT_S,
    )


class StageProcess:
    """One running instance of a stage."""

    def __init__(self, service: Service, settings: ServiceSettings, models: ModelsFile) -> None:
        self._service = service
        self._settings = settings
        engines = models.of_service(service.name, settings.engines)
        self._hosted = {key: HostedEngine(key, spec) for key, spec in engines.items()}
        self._models = models
        self._stop = asyncio.Event()
        self._tasks = TaskBag("process", on_error=self._failed)
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Drain and leave. Idempotent."""
        self._stop.set()

    def _failed(self, error: BaseException) -> None:
        _log.error("a part of the process failed", exc_info=error)
        self._failure = self._failure or error
        self._stop.set()

    async def run(self) -> int:
        """Live until stopped; returns the exit code."""
        async with AsyncExitStack() as stack:
            try:
                worker, announcer, bus, plane, telemetry = await self._start(stack)
            except OmnistageError as error:
                _log.error("failed to start", code=error.code, reason=error.message)
                return EXIT_FAILED_START if not isinstance(error, BusError) else EXIT_FAILED
            loading = self._tasks.spawn(self._load_all(worker, announcer, telemetry.metrics), "load")
            self._tasks.spawn(self._housekeeping(worker, bus, plane, telemetry), "housekeeping")
            await self._stop.wait()
            failed_start = announcer.state == "failed"
            loading.cancel()
            announcer.state = "draining"
            await announcer.announce()
            await worker.drain(0.0 if self._failure else self._settings.drain_s)
        if failed_start:
            return EXIT_FAILED_START
        return EXIT_FAILED if self._failure else 0

    async def _start(self, stack: AsyncExitStack) -> tuple[Worker, Announcer, Bus, TensorPlane, Telemetry]:
        settings, name = self._settings, self._service.name
        telemetry = Telemetry.start(settings, service=name, version=self._service.version)
        stack.callback(telemetry.close)
        bus = await open_bus(settings, self._models)
        stack.push_async_callback(bus.close)
        plane = await open_tensors(settings)
        stack.push_async_callback(plane.close)
        for hosted in self._hosted.values():
            stack.push_async_callback(hosted.close)
        neighbours = Neighbours(bus, plane.locality, skipped=lambda: telemetry.skipped("presence"))
        await neighbours.start()
        stack.push_async_callback(neighbours.close)
        announcer = Announcer(
            bus,
            service=name,
            instance=settings.instance,
            version=self._service.version,
            locality=plane.locality,
            engines=lambda: [hosted.status() for hosted in self._hosted.values()],
            running=lambda: worker.running,
        )
        tombstones = await bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)
        worker = Worker(
            bus=bus,
            plane=plane,
            tombstones=tombstones,
            service=name,
            instance=settings.instance,
            handlers=self._service.handlers,
            telemetry=telemetry,
            neighbours=neighbours,
            claims=ClaimBook(await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S), settings.instance),
            changed=announcer.changed,
        )
        await self._listen(stack, bus, worker, plane, announcer, telemetry)
        telemetry.serve(settings, lambda: self._readiness(announcer))
        stack.push_async_callback(self._tasks.close)
        self._tasks.spawn(announcer.run(), "presence")
        self._tasks.spawn(OrphanWatch(bus, tombstones, worker.owners).run(), "orphans")
        return worker, announcer, bus, plane, telemetry

    async def _listen(
        self,
        stack: AsyncExitStack,
        bus: Bus,
        worker: Worker,
        plane: TensorPlane,
        announcer: Announcer,
        telemetry: Telemetry,
    ) -> None:
        async def over(request_id: str) -> None:
            await worker.forget(request_id)
            await plane.forget(request_id)

        async def drain() -> None:
            self.stop()

        actions = ControlActions(cancel=over, forget=over, redo=worker.redo, ping=announcer.announce, drain=drain)
        control = ControlListener(bus, self._settings.instance, actions, lambda: telemetry.skipped("ctl"))
        await control.start()
        stack.push_async_callback(control.close)

    def _readiness(self, announcer: Announcer) -> tuple[bool, str]:
        waiting = [f"{hosted.key}: {hosted.detail}" for hosted in self._hosted.values() if not hosted.ready]
        return announcer.state == "ready", "; ".join(waiting) or announcer.state

    async def _load_all(self, worker: Worker, announcer: Announcer, metrics: Metrics) -> None:
        """One engine after the other: loading them at once would only make each slower, and needs more memory."""
        try:
            for hosted in self._hosted.values():
                announcer.changed()
                await hosted.load(self._service.load, metrics)
                await worker.serve(hosted)
                announcer.changed()
        except OmnistageError as error:
            _log.error("failed to load an engine", code=error.code, reason=error.message)
            announcer.state = "failed"
            await announcer.announce()
            self.stop()
            return
        announcer.state = "ready"
        announcer.changed()

    def _end_if_stuck(self) -> None:
        for hosted in self._hosted.values():
            if hosted.stalled_s > 2 * STALL_S:
                _log.error("engine is stuck", engine=hosted.key, seconds=round(hosted.stalled_s, 1))
                _leave_at_once()

    async def _housekeeping(self, worker: Worker, bus: Bus, plane: TensorPlane, telemetry: Telemetry) -> None:
        period = 0
        while True:
            await asyncio.sleep(1.0)
            period += 1
            self._end_if_stuck()
            try:
                for hosted in self._hosted.values():
                    await worker.count_pending(hosted)
            except BusError as error:
                _log.warning("cannot count waiting work", code=error.code)
            if period % int(_SWEEP_S) == 0:
                await self._sweep(worker, plane, telemetry)
            telemetry.refresh(bus, plane, tuple(self._hosted.values()))

    async def _sweep(self, worker: Worker, plane: TensorPlane, telemetry: Telemetry) -> None:
        try:
            telemetry.reclaimed(await plane.sweep())
            await forget_ended(plane, worker.tombstones, worker.held)
        except (BusError, TensorError) as error:
            _log.warning("cannot sweep", code=error.code)


def _leave_at_once() -> NoReturn:
    """End the process without waiting for a thread that will never come back."""
    logging.shutdown()
    os._exit(EXIT_FAILED)


async def _watch_parent(parent_pid: int, stop: Callable[[], None]) -> None:
    """Leave when the launcher is gone, also where the kernel has no parent-death signal."""
    while os.getppid() == parent_pid:  # noqa: ASYNC110 - nothing tells a process that its parent has died
        await asyncio.sleep(_PARENT_CHECK_S)
    stop()


async def run_until_signalled(main: Coroutine[Any, Any, int], stop: Callable[[], None], parent_pid: int | None) -> int:
    """Run a process's main coroutine; INT and TERM call `stop` once, a second one ends at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    tasks = TaskBag("parent")
    if parent_pid is not None:
        tasks.spawn(_watch_parent(parent_pid, stop), "watch")
    try:
        return await main
    finally:
        await tasks.close()


def run_stage(service: Service, settings: ServiceSettings) -> int:
    """Run a stage's process to its end; returns the exit code."""
    import uvloop

    sys.setswitchinterval(0.0005)
    try:
        models = load_models(settings.models)
    except OmnistageError as error:
        print(f"omnistage-{service.name}: {error.message}", file=sys.stderr)  # noqa: T201 - before logging exists
        return EXIT_FAILED_START

    async def main() -> int:
        process = StageProcess(service, settings, models)
        return await run_until_signalled(process.run(), process.stop, settings.parent_pid)

    return uvloop.run(main())
