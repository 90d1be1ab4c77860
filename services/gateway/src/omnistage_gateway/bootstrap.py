"""The only place that wires the gateway together."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn
import uvloop

from omnistage.config import ModelsFile, load_models
from omnistage.errors import BusError, OmnistageError, TensorError
from omnistage.observability import get_logger, names
from omnistage.runtime.control import ControlActions, ControlListener
from omnistage.runtime.presence import Announcer
from omnistage.runtime.service import EXIT_FAILED, EXIT_FAILED_START, open_bus, open_tensors, run_until_signalled
from omnistage.runtime.tasks import TaskBag
from omnistage.runtime.telemetry import Telemetry
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus
from omnistage_gateway import __version__
from omnistage_gateway.app import create_app
from omnistage_gateway.dispatch.fleet import Fleet
from omnistage_gateway.dispatch.hooks import metrics_hooks
from omnistage_gateway.dispatch.line import LineLimits
from omnistage_gateway.dispatch.runner import BusDispatcher, DispatchLimits
from omnistage_gateway.fetching import UrlLoader
from omnistage_gateway.keyring import Keyring
from omnistage_gateway.limits import Limits
from omnistage_gateway.middleware import Leaving
from omnistage_gateway.settings import Settings
from omnistage_gateway.slow_reader import cutting_protocol
from omnistage_gateway.slow_sender import impatient_protocol
from omnistage_gateway.transcripts import SharedTranscripts
from omnistage_gateway.voices import VoiceLibrary

_log = get_logger(__name__)

TRANSCRIPTS_BUCKET = "transcripts"
PRESENCE_S = 0.5
"""Stages give up a request whose gateway was silent for three of these."""

LEAVE_S = 1.0
"""How long requests on standing connections are still served, each with the word to open another connection next."""

LAST_BYTES_S = 2.0
"""How long the ends of answers may take to leave when the time for draining is over."""

_SWEEP_EVERY = 5


class _Server(uvicorn.Server):
    """Leaves signals to the process, which drains before the server stops."""

    def __init__(self, config: uvicorn.Config, leaving: Leaving) -> None:
        super().__init__(config)
        self._leaving = leaving

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_listening(self) -> None:
        """Accept no more connections; those that stand are served on, and closed by their next answer. Idempotent."""
        self._leaving.begin()
        for server in self.servers if self.started else ():
            server.close()


class GatewayProcess:
    """One running gateway."""

    def __init__(self, settings: Settings, models: ModelsFile) -> None:
        self._settings = settings
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
                dispatcher, announcer, server = await self._start(stack)
            except OmnistageError as error:
                _log.error("failed to start", code=error.code, reason=error.message)
                return EXIT_FAILED if isinstance(error, BusError | TensorError) else EXIT_FAILED_START
            await self._stop.wait()
            announcer.state = "draining"
            await announcer.announce()
            await self._drain(dispatcher, server)
        return EXIT_FAILED if self._failure else 0

    async def _drain(self, dispatcher: BusDispatcher, server: _Server) -> None:
        """Take nothing new, finish what was accepted, leave.

        Whoever connects from now on meets another gateway that listens on the same socket, or none; whoever has
        connected already is served for a moment more and told to connect anew, then gets a 503 that says so.
        """
        end = asyncio.get_running_loop().time() + (0.0 if self._failure else self._settings.drain_s)
        server.stop_listening()
        if not self._failure:
            await asyncio.sleep(min(LEAVE_S, self._settings.drain_s / 2))
        dispatcher.refuse()
        # Connections that carry nothing are closed at once; those with a request are waited for.
        server.should_exit = True
        await dispatcher.drain(max(0.0, end - asyncio.get_running_loop().time()))
        await dispatcher.close()
        await self._tasks.wait_for("http", timeout_s=max(LAST_BYTES_S, end - asyncio.get_running_loop().time()))

    async def _start(self, stack: AsyncExitStack) -> tuple[BusDispatcher, Announcer, _Server]:
        settings = self._settings
        telemetry = Telemetry.start(settings, service="gateway", version=__version__)
        stack.callback(telemetry.close)
        bus = await open_bus(settings, self._models)
        stack.push_async_callback(bus.close)
        plane = await open_tensors(settings)
        stack.push_async_callback(plane.close)
        dispatcher = self._dispatcher(bus, plane, telemetry)
        announcer = Announcer(
            bus,
            service="gateway",
            instance=settings.instance,
            version=__version__,
            locality=plane.locality,
            running=lambda: dispatcher.request_ids,
            period_s=PRESENCE_S,
        )
        await dispatcher.start()
        stack.push_async_callback(dispatcher.close)
        server = await self._server(bus, dispatcher, telemetry)
        await self._listen(stack, bus, announcer, dispatcher, telemetry)
        telemetry.serve(settings, dispatcher.ready)
        stack.push_async_callback(self._tasks.close)
        self._tasks.spawn(self._serve(server), "http")
        self._tasks.spawn(announcer.run(), "presence")
        self._tasks.spawn(self._housekeeping(bus, plane, dispatcher, telemetry), "housekeeping")
        announcer.state = "ready"
        return dispatcher, announcer, server

    def _dispatcher(self, bus: Bus, plane: TensorPlane, telemetry: Telemetry) -> BusDispatcher:
        settings = self._settings
        line = LineLimits(
            total=settings.max_waiting, per_tenant=settings.max_waiting_per_key, wait_s=settings.max_wait_s
        )
        limits = DispatchLimits(line=line)
        fleet = Fleet(bus, self._models, settings.instance, skipped=lambda: telemetry.skipped("presence"))
        return BusDispatcher(
            bus, plane, fleet, limits=limits, hooks=metrics_hooks(telemetry.metrics), tracing=telemetry.tracing
        )

    async def _server(self, bus: Bus, dispatcher: BusDispatcher, telemetry: Telemetry) -> _Server:
        settings = self._settings
        limits = Limits(body_bytes=settings.body_mb * 2**20, read_s=settings.request_read_s)
        bucket = await bus.key_value(TRANSCRIPTS_BUCKET, ttl_s=limits.transcript_s)
        app = create_app(
            dispatcher=dispatcher,
            models=self._models,
            metrics=telemetry.metrics,
            keyring=Keyring(settings.keys()),
            limits=limits,
            transcripts=SharedTranscripts(bucket),
            urls=UrlLoader(settings.fetch_policy()),
            voices=await VoiceLibrary.open(bus, settings.voice_limits()),
            tracing=telemetry.tracing,
            cors_origins=settings.cors_origins,
        )
        leaving = Leaving(app)
        config = uvicorn.Config(
            leaving,
            http=cutting_protocol(
                settings.slow_reader_s,
                lambda: telemetry.metrics.add(names.SLOW_READERS),
                impatient_protocol(settings.request_read_s),
            ),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, int(settings.drain_s)),
        )
        return _Server(config, leaving)

    async def _serve(self, server: _Server) -> None:
        descriptor = self._settings.listen_fd
        sockets = None if descriptor is None else [socket.socket(fileno=descriptor)]
        try:
            await server.serve(sockets)
        except SystemExit as error:
            # uvicorn's way to say that it cannot listen; the reason is in its log line.
            raise OSError(f"cannot listen on {self._settings.host}:{self._settings.port}") from error
        if not self._stop.is_set():
            raise OSError("the HTTP server ended by itself")

    async def _listen(
        self,
        stack: AsyncExitStack,
        bus: Bus,
        announcer: Announcer,
        dispatcher: BusDispatcher,
        telemetry: Telemetry,
    ) -> None:
        async def cancel(request_id: str) -> None:
            dispatcher.cancelled(request_id)

        async def nothing(_request_id: str) -> None:
            """The gateway is the one who sends these."""

        async def drain() -> None:
            self.stop()

        def no_edges(_request_id: str, _edge: str, _seq: int) -> None:
            """No edge begins at the gateway."""

        actions = ControlActions(cancel=cancel, forget=nothing, redo=no_edges, ping=announcer.announce, drain=drain)
        control = ControlListener(bus, self._settings.instance, actions, lambda: telemetry.skipped("ctl"))
        await control.start()
        stack.push_async_callback(control.close)

    async def _housekeeping(
        self, bus: Bus, plane: TensorPlane, dispatcher: BusDispatcher, telemetry: Telemetry
    ) -> None:
        period = 0
        while True:
            await asyncio.sleep(1.0)
            period += 1
            if period % _SWEEP_EVERY == 0:
                telemetry.reclaimed(await plane.sweep())
            telemetry.refresh(bus, plane)
            telemetry.metrics.set(names.WAITING, dispatcher.waiting)
            telemetry.metrics.set(names.REQUESTS_RUNNING, dispatcher.running)


def run(settings: Settings) -> int:
    """Run a gateway to its end; returns the exit code."""
    try:
        models = load_models(settings.models)
    except OmnistageError as error:
        print(f"omnistage-gateway: {error.message}", file=sys.stderr)  # noqa: T201 - before logging exists
        return EXIT_FAILED_START

    async def main() -> int:
        process = GatewayProcess(settings, models)
        return await run_until_signalled(process.run(), process.stop, settings.parent_pid)

    return uvloop.run(main())
