"""Claims work, runs handlers, keeps claims alive, and turns whatever happens into the right end.

    claim -> take over the output logs -> handler -> ends are written -> acknowledge

An error becomes an error record on every edge that has no end yet; a fenced holder stops without a word; a cancelled
request is dropped; a stop hands running work back to the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnistage.contracts import Work, decode_work
from omnistage.errors import BusError, Cancelled, DeadlineExceeded, Fenced, OmnistageError, StageFailed
from omnistage.observability import get_logger, names
from omnistage.runtime.context import RequestContext
from omnistage.runtime.engines import HostedEngine, engine_of
from omnistage.runtime.failures import to_failure
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.tasks import TaskBag
from omnistage.runtime.telemetry import Outcome, Telemetry
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus, Claim, KeyValue, WorkQueue

_log = get_logger(__name__)

HEARTBEAT_S = 0.4
"""A claim is prolonged this often; the queue gives it to another instance after 1.5 s of silence."""

Handler = Callable[[RequestContext[Any], Any], Awaitable[None]]
Handlers = Mapping[type[Work], Handler]


@dataclass
class _Held:
    """A claim that runs."""

    claim: Claim
    task: asyncio.Task[None]
    over: bool = False
    """Set when the request was cancelled: nothing more is to be written for it."""
    began: float = field(default_factory=time.monotonic)


class Worker:
    """Runs the work of one service's engines."""

    def __init__(
        self,
        *,
        bus: Bus,
        plane: TensorPlane,
        tombstones: KeyValue,
        service: str,
        instance: str,
        handlers: Handlers,
        telemetry: Telemetry,
        neighbours: Neighbours,
        input_idle_s: float = 60.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._plane = plane
        self._tombstones = tombstones
        self._service = service
        self._instance = instance
        self._handlers = handlers
        self._telemetry = telemetry
        self._neighbours = neighbours
        self._input_idle_s = input_idle_s
        self._changed = changed
        self._held: dict[str, _Held] = {}
        self._requests = TaskBag("request")
        self._loops = TaskBag("claims", on_error=self._loop_failed)
        self._queues: dict[str, WorkQueue] = {}
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._held)

    async def serve(self, hosted: HostedEngine) -> None:
        """Begin to claim work for a loaded engine."""
        queue = await self._bus.work_queue(self._service, hosted.key)
        self._queues[hosted.key] = queue
        if not self._loops:
            self._loops.spawn(self._heartbeats(), "heartbeats")
        self._loops.spawn(self._claims(hosted, queue), hosted.key)

    async def count_pending(self, hosted: HostedEngine) -> None:
        """Refresh how many items wait for this engine."""
        if hosted.key in self._queues:
            hosted.queue = await self._queues[hosted.key].pending()

    def cancel(self, request_id: str) -> None:
        """Drop a request, whatever it is doing. Idempotent."""
        held = self._held.get(request_id)
        if held is not None and not held.over:
            held.over = True
            held.task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Claim no more, let what runs finish for a while, hand the rest back."""
        await self._loops_but_heartbeats()
        await self._requests.wait(timeout_s)
        await self._requests.close()
        await self._loops.close()
        for queue in self._queues.values():
            await queue.close()

    async def _loops_but_heartbeats(self) -> None:
        for task in self._loops.named(*self._queues):
            task.cancel()
            await asyncio.wait({task})

    def _loop_failed(self, error: BaseException) -> None:
        self.failure = error
        self.failed.set()

    async def _claims(self, hosted: HostedEngine, queue: WorkQueue) -> None:
        while True:
            await hosted.slots.acquire()
            try:
                claim = await self._next(queue)
            except BaseException:
                hosted.slots.release()
                raise
            self._requests.spawn(self._run(hosted, claim), claim.message.subject)

    async def _next(self, queue: WorkQueue) -> Claim:
        while True:
            try:
                return await queue.claim()
            except BusError as error:
                _log.warning("cannot claim work", code=error.code)
                await asyncio.sleep(0.2)

    async def _run(self, hosted: HostedEngine, claim: Claim) -> None:
        try:
            work, meta = await self._read(claim)
        except (msgspec.MsgspecError, ValueError) as error:
            hosted.slots.release()
            await self._bury(hosted, claim, str(error))
            return
        task = asyncio.current_task()
        assert task is not None
        held = _Held(claim, task)
        self._held[work.request_id] = held
        self._telemetry.queue_wait(hosted.key, claim.message.headers)
        hosted.began(work.request_id)
        self._changed()
        try:
            await self._settle(hosted, held, work, meta)
        finally:
            if self._held.get(work.request_id) is held:
                del self._held[work.request_id]
            hosted.ended(work.request_id)
            hosted.slots.release()
            self._changed()

    async def _read(self, claim: Claim) -> tuple[Work, Meta]:
        work = decode_work(claim.message.body)
        if type(work) not in self._handlers:
            raise ValueError(f"the {self._service} does not answer {type(work).__name__}")
        return work, Meta.from_headers(claim.message.headers)

    async def _bury(self, hosted: HostedEngine, claim: Claim, reason: str) -> None:
        """A message that nobody can read: kept for people, removed from the queue."""
        request_id = claim.message.subject.rsplit(".", 1)[-1]
        _log.error("unreadable work", request_id=request_id, engine=hosted.key)
        self._telemetry.metrics.add(names.POISONED, model=hosted.key)
        await self._bus.bury(self._service, hosted.key, request_id, claim.message.body, reason)
        await claim.ack()

    async def _settle(self, hosted: HostedEngine, held: _Held, work: Work, meta: Meta) -> None:
        """Run the handler and decide what becomes of the claim."""
        context: RequestContext[Any] = RequestContext(
            bus=self._bus,
            plane=self._plane,
            engine=engine_of(hosted),
            instance=self._instance,
            work=work,
            meta=meta,
            input_idle_s=self._input_idle_s,
            telemetry=self._telemetry,
            neighbours=self._neighbours,
        )
        claim = held.claim
        with self._telemetry.work(work, meta, hosted.key, claim.deliveries) as outcome:
            try:
                await self._handle(context, work, outcome)
            except asyncio.CancelledError:
                if held.over:
                    outcome("cancelled")
                    await asyncio.shield(claim.ack())
                    return
                outcome("handed_over")
                await asyncio.shield(claim.nak())
                raise
            except Fenced:
                outcome("fenced")
                return
            except Cancelled:
                outcome("cancelled")
            except OmnistageError as error:
                outcome(error.code)
                await self._fail(context, error)
            except Exception as error:  # noqa: BLE001 - a handler's bug must fail its request and nothing else
                outcome("internal_error")
                _log.exception("handler failed", request_id=work.request_id, engine=hosted.key)
                await self._fail(context, error)
            else:
                outcome("ok")
            await claim.ack()

    async def _handle(self, context: RequestContext[Any], work: Work, outcome: Outcome) -> None:
        await context.enter(self._tombstones)
        outcome.resumed = context.resumed
        if context.writers and all(writer.finished for writer in context.writers):
            return
        limit = asyncio.timeout(max(0.0, context.meta.remaining_s))
        try:
            async with limit:
                await self._handlers[type(work)](context, work)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"the {self._service} was still at work when the deadline passed") from None
        unfinished = [writer.edge for writer in context.writers if not writer.finished]
        if unfinished:
            raise StageFailed(f"the handler left {', '.join(unfinished)} without an end")

    async def _fail(self, context: RequestContext[Any], error: BaseException) -> None:
        failure = to_failure(error, self._service)
        for writer in context.writers:
            try:
                await writer.fail(failure)
            except Fenced:
                return

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for held in list(self._held.values()):
                try:
                    await held.claim.in_progress()
                except BusError as error:
                    _log.warning("cannot prolong a claim", code=error.code)
