"""Claims work, runs handlers, keeps claims alive, and turns whatever happens into the right end.

    claim -> take over the output logs -> handler -> ends are written -> linger -> acknowledge

An error becomes an error record on every edge that has no end yet; a fenced holder stops without a word; a cancelled
request is dropped; a stop hands running work back to the queue. Work whose edges have ended is kept, without a slot,
until the gateway is through with the request: a reader may have lost a payload and need the edge written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from omnistage.contracts import CONTRACT_VERSION, Failure, Work, decode_work
from omnistage.errors import (
    BusError,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    Fenced,
    OmnistageError,
    Poisoned,
    QueueFull,
    StageFailed,
)
from omnistage.observability import get_logger, names
from omnistage.pipelines import pipeline
from omnistage.runtime.broken import bury, check_work
from omnistage.runtime.claims import ClaimBook
from omnistage.runtime.context import RequestContext
from omnistage.runtime.engines import HostedEngine, engine_of
from omnistage.runtime.failures import to_failure
from omnistage.runtime.holding import Held, Holdings
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.tasks import TaskBag
from omnistage.runtime.telemetry import Outcome, Telemetry
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus, Claim, KeyValue, WorkQueue

_log = get_logger(__name__)

HEARTBEAT_S = 0.4
"""A claim is prolonged this often; the queue gives it to another instance after 1.5 s of silence."""

HOLDER_S = 1.0
"""Work of a holder that could not be heard is left to it for so long: it speaks meanwhile, or is dead."""

STALL_S = 2.0
"""An engine that exceeds its step's time by this much keeps its claims no longer; twice this ends the process."""

LATER_S, LATER_MAX_S = 0.1, 1.0
"""Work that needs a later version is given back for so long, times its deliveries up to now, and at most so long."""

LATER_TRIES = 10_000
"""After so many deliveries, some hours, nobody waits for it any more."""

ALONE_S = 2.0
"""A suspect that has not ended its instance after so long alone runs beside others."""

CRASHES_ALONE = 2
"""After so many crashes a request runs alone on its instance; one more makes it poison."""

Handler = Callable[[RequestContext[Any], Any], Awaitable[None]]
Handlers = Mapping[type[Work], Handler]


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
        claims: ClaimBook | None = None,
        input_idle_s: float = 60.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._plane = plane
        self.tombstones = tombstones
        self._service = service
        self._instance = instance
        self._handlers = handlers
        self._telemetry = telemetry
        self._neighbours = neighbours
        self._claims = claims
        self._input_idle_s = input_idle_s
        self._changed = changed
        self._holdings = Holdings()
        self._requests = TaskBag("request")
        self._notes = TaskBag("claim book")
        self._loops = TaskBag("claims", on_error=self._loop_failed)
        self._queues: dict[str, WorkQueue] = {}
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None

    @property
    def running(self) -> tuple[str, ...]:
        return self._holdings.running

    @property
    def held(self) -> tuple[str, ...]:
        """Every request that this instance holds, running or lingering."""
        return tuple(held.work.request_id for held in self._holdings)

    def owners(self) -> dict[str, str]:
        """The requests that this instance holds and a gateway waits for -> that gateway's instance."""
        return {held.work.request_id: held.meta.gateway for held in self._holdings if held.meta.gateway}

    async def serve(self, hosted: HostedEngine) -> None:
        """Begin to claim work for a loaded engine."""
        queue = await self._bus.work_queue(self._service, hosted.key)
        self._queues[hosted.key] = queue
        if not self._loops:
            self._loops.spawn(self._heartbeats(), "heartbeats")
        self._loops.spawn(self._claim_work(hosted, queue), hosted.key)

    async def count_pending(self, hosted: HostedEngine) -> None:
        """Refresh how many items wait for this engine."""
        if hosted.key in self._queues:
            hosted.queue = await self._queues[hosted.key].pending()

    async def forget(self, request_id: str) -> None:
        """The request is over: drop it, whatever it is doing. Idempotent."""
        for held in self._holdings.of_request(request_id):
            held.over = True
            if held.task is not None:
                held.task.cancel()
            else:
                await self._let_go(held)

    def redo(self, request_id: str, edge: str, seq: int) -> None:
        """Write an edge of ours again from a record on, if we hold the request."""
        for held in self._holdings.of_request(request_id):
            if edge in held.edges_out and not held.over:
                held.redo[edge] = min(seq, held.redo.get(edge, seq))
                if held.task is not None:
                    held.task.cancel()
                else:
                    self._requests.spawn(self._again(held), f"redo {request_id}")

    async def drain(self, timeout_s: float) -> None:
        """Claim no more, let what runs finish for a while, hand the rest back."""
        for task in self._loops.named(*self._queues):
            task.cancel()
            await asyncio.wait({task})
        await self._requests.wait(timeout_s)
        await self._requests.close()
        for held in list(self._holdings):
            await self._give_back(held)
        await self._loops.close()
        await self._notes.wait(1.0)
        await self._notes.close()
        for queue in self._queues.values():
            await queue.close()

    def _loop_failed(self, error: BaseException) -> None:
        self.failure = error
        self.failed.set()

    async def _claim_work(self, hosted: HostedEngine, queue: WorkQueue) -> None:
        while True:
            await hosted.slots.reserve()
            try:
                claim = await self._next(queue)
            except BaseException:
                hosted.slots.cancel_reservation()
                raise
            self._requests.spawn(self._take(hosted, claim), claim.message.subject)

    async def _next(self, queue: WorkQueue) -> Claim:
        while True:
            try:
                return await queue.claim()
            except BusError as error:
                _log.warning("cannot claim work", code=error.code)
                await asyncio.sleep(0.2)

    async def _take(self, hosted: HostedEngine, claim: Claim) -> None:
        """A claim with a reserved slot: read it and run it."""
        try:
            meta = Meta.from_headers(claim.message.headers)
            if meta.contract > CONTRACT_VERSION:
                if meta.remaining_s < -STALL_S or claim.deliveries > LATER_TRIES:
                    raise ValueError("it needs a later version, and nobody waits for it any more")
                hosted.slots.cancel_reservation()
                await self._leave_to_others(hosted.key, claim, meta.contract)
                return
            if (delay_s := self._wait_for_others(hosted, claim)) > 0:
                hosted.slots.cancel_reservation()
                await self._put_off(claim, delay_s)
                return
            work = decode_work(claim.message.body)
            check_work(work, claim.message.subject, hosted.key)
            edges = self._edges_out(work)
        except (msgspec.MsgspecError, ValueError, ConfigError) as error:
            hosted.slots.cancel_reservation()
            await self._bury(hosted.key, claim, str(error))
            return
        running = self._holdings.at_work(work.request_id, work.node)
        if running is not None:
            # Delivered again though its holder, ourselves, lives: nothing has to be taken over.
            hosted.slots.cancel_reservation()
            running.claim = claim
            self._note(running)
            return
        held = Held(claim=claim, work=work, meta=meta, hosted=hosted, edges_out=edges)
        self._telemetry.queue_wait(hosted.key, claim.message.headers)
        self._note(held)
        await self._run(held)

    def _note(self, held: Held) -> None:
        if self._claims is not None:
            entering = self._claims.enter(held.work.request_id, held.hosted.key, held.claim)
            held.note = self._notes.spawn(entering)

    def _wait_for_others(self, hosted: HostedEngine, claim: Claim) -> float:
        """For how long an item is to be left to others; 0 if it is ours."""
        if hosted.stalled_s > STALL_S:
            return LATER_S
        # Its holder may live: a broker that stood still could not hear it, nor could anybody else.
        return HOLDER_S if claim.deliveries > 1 and self._neighbours.silent_lately() else 0.0

    def _edges_out(self, work: Work) -> frozenset[str]:
        """Names of the edges that a work item's node writes.

        Raises:
            ValueError, ConfigError: no handler of this service answers it, or its pipeline has no such node.
        """
        graph = pipeline(work.pipeline)
        if type(work) not in self._handlers or graph.node(work.node).service != self._service:
            raise ValueError(f"the {self._service} does not answer {type(work).__name__} for node {work.node!r}")
        return frozenset(edge.name for edge in graph.out_of(work.node))

    async def _leave_to_others(self, engine: str, claim: Claim, contract: int) -> None:
        """Work for a later version than ours: no crash, and no hurry while nobody else is there to take it."""
        request_id = claim.message.subject.rsplit(".", 1)[-1]
        _log.info("work needs a later version", request_id=request_id, engine=engine, contract=contract)
        self._telemetry.metrics.add(names.WORK_FOR_LATER, model=engine)
        await self._put_off(claim, min(LATER_MAX_S, LATER_S * claim.deliveries))

    async def _put_off(self, claim: Claim, delay_s: float) -> None:
        try:
            await claim.nak(delay_s)
        except BusError as error:
            request_id = claim.message.subject.rsplit(".", 1)[-1]
            _log.warning("cannot give work back", code=error.code, request_id=request_id)

    async def _again(self, held: Held) -> None:
        await held.hosted.slots.reserve()
        await self._run(held)

    async def _run(self, held: Held) -> None:
        """Run the handler in the slot that the caller has reserved, then decide what becomes of the claim."""
        task = asyncio.current_task()
        assert task is not None
        held.task = task
        self._holdings.add(held)
        try:
            await held.hosted.slots.enter()
        except asyncio.CancelledError:
            held.task = None
            if not (held.over or held.redo):
                await asyncio.shield(self._give_back(held))
                raise
            _uncancel()
        else:
            await self._run_entered(held)
        if held.over:
            await asyncio.shield(self._let_go(held))
        elif held.redo:
            self._requests.spawn(self._again(held), f"redo {held.work.request_id}")

    async def _run_entered(self, held: Held) -> None:
        held.hosted.began(held.work.request_id)
        self._changed()
        try:
            await self._settle(held)
        finally:
            held.task = None
            held.hosted.ended(held.work.request_id)
            held.hosted.slots.leave()
            self._changed()

    async def _settle(self, held: Held) -> None:
        redo, held.redo = held.redo, {}
        context = self._context(held)
        engine = held.hosted.key
        with self._telemetry.work(held.work, held.meta, engine, held.claim.deliveries) as outcome:
            try:
                await self._handle(context, held, redo, outcome)
            except asyncio.CancelledError:
                if held.over or held.redo:
                    outcome("cancelled" if held.over else "redo")
                    _uncancel()
                    return
                outcome("handed_over")
                await asyncio.shield(self._hand_over(context, held))
                raise
            except Fenced:
                outcome("fenced")
                self._holdings.remove(held)
                self._strike(held)
            except Cancelled:
                outcome("cancelled")
                held.over = True
            except OmnistageError as error:
                outcome(error.code)
                await self._fail(context, error)
            except Exception as error:  # noqa: BLE001 - a handler's bug must fail its request and nothing else
                outcome("internal_error")
                _log.exception("handler failed", request_id=held.work.request_id, engine=engine)
                await self._fail(context, error)
            else:
                outcome("ok")

    def _context(self, held: Held) -> RequestContext[Any]:
        return RequestContext(
            bus=self._bus,
            plane=self._plane,
            engine=engine_of(held.hosted),
            instance=self._instance,
            work=held.work,
            meta=held.meta,
            input_idle_s=self._input_idle_s,
            telemetry=self._telemetry,
            neighbours=self._neighbours,
        )

    async def _handle(
        self, context: RequestContext[Any], held: Held, redo: Mapping[str, int], outcome: Outcome
    ) -> None:
        limit = asyncio.timeout(max(0.0, held.meta.remaining_s))
        try:
            async with limit:
                await context.enter(self.tombstones, redo, fresh=held.claim.deliveries == 1)
                outcome.resumed = context.resumed
                if context.writers and all(writer.finished for writer in context.writers):
                    return
                await self._guarded(context, held)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"the {self._service} was still at work when the deadline passed") from None
        unfinished = [writer.edge for writer in context.writers if not writer.finished]
        if unfinished:
            raise StageFailed(f"the handler left {', '.join(unfinished)} without an end")

    async def _guarded(self, context: RequestContext[Any], held: Held) -> None:
        """Run the handler; a request that has ended instances before does not endanger others again."""
        handler = self._handlers[type(held.work)]
        if context.crashes < CRASHES_ALONE:
            await handler(context, held.work)
            return
        if context.crashes > CRASHES_ALONE:
            self._telemetry.metrics.add(names.POISONED, model=held.hosted.key)
            reason = f"{context.crashes} instances of the {self._service} ended while they ran this request"
            await self._bus.bury(self._service, held.hosted.key, held.work.request_id, held.claim.message.body, reason)
            raise Poisoned(reason)
        # Whatever ends the instance while this request only waits is not this request's fault.
        await context.step_back()
        held.apart = True
        try:
            end_isolation = await held.hosted.slots.isolate(lambda: self._make_room(held))
        finally:
            held.apart = False
        # It may have to wait for input that is not there yet; others are not to wait with it.
        limit = asyncio.get_running_loop().call_later(ALONE_S, end_isolation)
        try:
            await context.step_forward(end_isolation)
            await handler(context, held.work)
        finally:
            limit.cancel()
            end_isolation()

    def _make_room(self, suspect: Held) -> None:
        """Hand over whatever else runs in this engine, so that a crash is the suspect's own."""
        for held in self._holdings:
            if held.hosted is suspect.hosted and held is not suspect and not held.apart and held.task is not None:
                held.task.cancel()

    async def _fail(self, context: RequestContext[Any], error: BaseException) -> None:
        failure = to_failure(error, self._service)
        try:
            await context.fail(failure)
        except Fenced:
            return
        except QueueFull:
            await self._fail_in_its_own_room(context, failure)

    async def _fail_in_its_own_room(self, context: RequestContext[Any], failure: Failure) -> None:
        """The logs are full: what a failed request has written is of no more use, and makes room for its end."""
        try:
            await self._bus.purge_request(context.request_id)
            if await self.tombstones.get(context.request_id) is None:
                await context.fail(failure, purged=True)
        except BusError as error:
            # The gateway notices the silence.
            _log.warning("cannot say that a request failed", code=error.code, request_id=context.request_id)

    async def _hand_over(self, context: RequestContext[Any], held: Held) -> None:
        """Give running work to whoever claims it next, and say in its logs that this was no crash."""
        for writer in context.writers:
            try:
                await writer.release()
            except BusError:
                break
        await self._give_back(held)

    async def _give_back(self, held: Held) -> None:
        self._holdings.remove(held)
        if not held.given_up:
            await self._put_off(held.claim, 0.0)
            self._strike(held)

    async def _give_up(self, held: Held) -> None:
        """Its engine is stuck: offer the claim to others, and have nobody offer it again when this process ends."""
        if not held.given_up:
            held.given_up = True
            await self._put_off(held.claim, 0.0)
            self._strike(held)

    async def _let_go(self, held: Held) -> None:
        """The request is over: acknowledge and keep nothing."""
        self._holdings.remove(held)
        try:
            await held.claim.ack()
        except BusError as error:
            # The gateway has purged the item, or will; a late delivery meets the tombstone.
            _log.warning("cannot acknowledge work", code=error.code, request_id=held.work.request_id)
        self._strike(held)

    def _strike(self, held: Held) -> None:
        """Take the claim out of the book, after it was written in."""

        async def strike(book: ClaimBook, note: asyncio.Task[None]) -> None:
            await asyncio.wait({note})
            await book.strike(held.work.request_id, held.hosted.key)

        note, held.note = held.note, None
        if self._claims is not None and note is not None and not self._notes.closed:
            self._notes.spawn(strike(self._claims, note))

    async def _bury(self, engine: str, claim: Claim, reason: str) -> None:
        """A message that nobody can act on: kept for people, removed from the queue."""
        request_id = claim.message.subject.rsplit(".", 1)[-1]
        _log.error("unreadable work", request_id=request_id, engine=engine)
        self._telemetry.metrics.add(names.POISONED, model=engine)
        self._telemetry.skipped("work")
        try:
            await (claim.ack() if await bury(self._bus, claim.message, reason) else claim.nak(LATER_S))
        except BusError as error:
            _log.warning("cannot remove unreadable work", code=error.code)

    async def _heartbeats(self) -> None:
        """Prolong claims, but not those of an engine that is stuck: they are another instance's to take."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for held in list(self._holdings):
                if held.hosted.stalled_s > STALL_S:
                    await self._give_up(held)
                if held.task is None and held.meta.remaining_s < -STALL_S:
                    # Its gateway is gone, or it would have said that the request is over.
                    await self._let_go(held)
                    continue
                if held.given_up:
                    continue
                try:
                    await held.claim.in_progress()
                except BusError as error:
                    _log.warning("cannot prolong a claim", code=error.code)


def _uncancel() -> None:
    """The cancellation was ours and is dealt with."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
