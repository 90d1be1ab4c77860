"""The dispatcher: admits requests, sends them through their pipeline, and leaves nothing of them behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from omnistage.config import ModelSpec
from omnistage.contracts import AnyWork, Payload, encode, needed_version
from omnistage.errors import Cancelled, InvalidRequest, OmnistageError, Unavailable
from omnistage.observability import Tracing, describe_error, get_logger, inject, names, setup_tracing
from omnistage.pipelines import Pipeline
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.runtime.meta import Meta, sent_now
from omnistage.runtime.orphans import LISTED_MAX
from omnistage.runtime.tasks import TaskBag
from omnistage.transport import Bus, KeyValue
from omnistage_gateway.dispatch.admission import Admission, Place
from omnistage_gateway.dispatch.ending import Ending
from omnistage_gateway.dispatch.fleet import Fleet
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.dispatch.hooks import Hooks, Kind
from omnistage_gateway.dispatch.interface import Plan, Running
from omnistage_gateway.dispatch.line import Line, LineLimits, Ticket
from omnistage_gateway.dispatch.out_edge import REDO_WAIT_S, OutEdge, Plane
from omnistage_gateway.dispatch.promises import SharedPromises
from omnistage_gateway.dispatch.request import Calls, Request

_log = get_logger(__name__)

_SHORTEST_LEASE_S = 1.0

UPGRADE_RETRY_S = 5.0
"""When to come back with a request that some instances are too old for: replacing one takes a few seconds."""


class GatewayPlane(Plane, Protocol):
    """What the dispatcher asks of the tensor plane besides; see `omnistage.tensors.plane.TensorPlane`."""

    locality: str

    async def pack(
        self, array: NDArray[Any], *, request_id: str, lease_s: float, same_host: bool = True
    ) -> Payload: ...


@dataclass(frozen=True)
class DispatchLimits:
    """How the dispatcher bounds things.

    Attributes:
        line: bounds of the waiting line.
        idle_s: silence of all out edges after which work is published again.
        buffered: events read ahead of a router.
        clear_s: how long clearing up after one request may take while the broker is away.
        redo_wait_s: how long a stage may take to answer that samples were lost.
        late_s: how long after a cancelled request its subjects are purged a second time.
    """

    line: LineLimits = field(default_factory=LineLimits)
    idle_s: float = 30.0
    buffered: int = 32
    clear_s: float = 10.0
    redo_wait_s: float = REDO_WAIT_S
    late_s: float = 1.0


@dataclass(frozen=True)
class _Active:
    """A request that has its place."""

    plan: Plan
    request: Request
    place: Place
    began: float


class BusDispatcher:
    """Implements `interface.Dispatcher` over the bus.

    Args:
        bus, plane: where requests go and their bytes lie.
        fleet: who lives; started and closed with the dispatcher.
        limits: bounds.
        hooks: told what happens.
        tracing: records the time in line.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bus: Bus,
        plane: GatewayPlane,
        fleet: Fleet,
        *,
        limits: DispatchLimits | None = None,
        hooks: Hooks | None = None,
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._plane = plane
        self._fleet = fleet
        self._limits = limits or DispatchLimits()
        self._hooks = hooks or Hooks()
        self._tracing = tracing or setup_tracing("gateway", "", "", None)
        self._clock = clock
        self._promises = SharedPromises(bus, fleet, clock)
        self._line = Line(fleet, self._limits.line, clock, self._promises)
        self._admission = Admission(self._line, clock)
        self._known: set[str] = set()
        self._active: dict[str, _Active] = {}
        self._endings = TaskBag("ending", on_error=self._ending_failed)
        self._closing = asyncio.Event()
        self._accepted = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._tombstones: KeyValue | None = None

    async def start(self) -> None:
        """Begin to listen for who lives.

        Raises:
            BusUnavailable: there is no broker.
        """
        self._tombstones = await self._bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)
        self._fleet.on_change(self._admission.wake)
        await self._promises.start(self._line.bookings, self._line.wanted)
        await self._fleet.start()

    def refuse(self) -> None:
        """Accept no more requests; those that run or wait in line go on. Idempotent."""
        self._admission.refuse()

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more, let what was accepted finish for a while; False if some still runs or waits then."""
        self.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop what runs, clear up after it, leave. Idempotent."""
        self._admission.close()
        self._closing.set()
        for active in list(self._active.values()):
            active.request.fail(Unavailable("this gateway is shutting down", code="shutting_down", retry_after_s=1.0))
            self._retire(active)
        await self._endings.wait(3 * self._limits.clear_s)
        await self._endings.close()
        await self._promises.close()
        await self._fleet.close()

    def cancelled(self, request_id: str) -> None:
        """Somebody else has taken a request out of the system: whoever waits for it is told."""
        active = self._active.get(request_id)
        if active is not None:
            active.request.fail(Cancelled("the request was cancelled"))

    async def settled(self) -> None:
        """Wait until everything that has ended is cleared up."""
        await self._endings.wait()

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return self._admission.waiting

    @property
    def running(self) -> int:
        """Requests between admission and end."""
        return len(self._active)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that this gateway answers for, until they are cleared up: what its presence tells."""
        return tuple(itertools.islice(self._known, LISTED_MAX))

    @property
    def clearing(self) -> int:
        """Requests that are being cleared up."""
        return len(self._endings)

    def offered(self) -> Mapping[str, ModelSpec]:
        """See `interface.Dispatcher.offered`."""
        return self._fleet.offered()

    def engine(self, key: str) -> EngineView:
        """See `interface.Dispatcher.engine`."""
        return self._fleet.engine(key)

    def ready(self) -> tuple[bool, str]:
        """See `interface.Dispatcher.ready`."""
        return (False, "shutting down") if self._admission.refusing else self._fleet.ready()

    def run(self, plan: Plan, request_id: str) -> AbstractAsyncContextManager[Running]:
        """See `interface.Dispatcher.run`.

        A request id is good for one request: its tombstone outlives it.
        """
        return self._run(plan, request_id)

    @asynccontextmanager
    async def _run(self, plan: Plan, request_id: str) -> AsyncIterator[Running]:
        began = self._clock()
        self._accepted += 1
        self._empty.clear()
        active: _Active | None = None
        try:
            work = _work(plan, request_id)
            contract = max(plan.pipeline.contract, needed_version(work))
            place = await self._enter(plan, request_id, began, contract)
            request = self._request(plan, work, began, contract)
            active = self._active[request_id] = _Active(plan, request, place, began)
            await request.start()
            yield request
        finally:
            # Nothing is awaited here: a client that left may have cancelled this very task.
            if active is not None:
                self._retire(active)
            self._accepted -= 1
            if not self._accepted:
                self._empty.set()

    async def _enter(self, plan: Plan, request_id: str, began: float, contract: int) -> Place:
        if request_id in self._known:
            raise InvalidRequest("a request with this id is running", code="duplicate_request_id")
        route = _route(plan)
        ticket = Ticket(
            request_id=request_id,
            tenant=plan.tenant,
            engines=tuple(dict.fromkeys(route.values())),
            deadline=began + plan.deadline_s,
            batch=plan.priority == "batch",
            key=plan.retry_key,
        )
        self._known.add(request_id)
        try:
            self._check_versions(ticket.engines, contract)
            with self._tracing.span(names.SPAN_WAIT, {names.ATTR_MODEL: plan.model}):
                place = await self._admission.enter(ticket)
        except BaseException as error:
            self._known.discard(request_id)
            if isinstance(error, OmnistageError):
                self._hooks.refused(plan.model, error.code)
            raise
        self._hooks.waited(plan.model, place.waited_s)
        return place

    def _check_versions(self, engines: Iterable[str], contract: int) -> None:
        """While stages are being upgraded only that is offered which all their instances understand."""
        behind = self._fleet.too_old(engines, contract)
        if behind:
            raise Unavailable(
                f"the request needs contract 1.{contract}, and not every instance is upgraded yet ({behind})",
                code="upgrade_in_progress",
                retry_after_s=UPGRADE_RETRY_S,
            )

    def _request(self, plan: Plan, work: AnyWork, began: float, contract: int) -> Request:
        request_id, route = work.request_id, work.route
        deadline = began + plan.deadline_s
        trace: dict[str, str] = {}
        inject(trace)
        meta = Meta(
            deadline=time.time() + deadline - self._clock(),
            tenant=plan.tenant,
            priority=plan.priority,
            contract=contract,
            gateway=self._fleet.instance,
            streamed=plan.streamed,
            trace=trace,
        )
        entry = plan.pipeline.node(plan.pipeline.entry().destination)
        subject = self._bus.subjects.work(entry.service, route[entry.name], request_id)

        async def publish() -> None:
            packed = await self._packed(plan, work, deadline - self._clock())
            await self._bus.publish_work(subject, encode(packed), meta.to_headers() | sent_now())

        async def is_over() -> bool:
            return await self._bucket().get(request_id) is not None

        calls = Calls(
            publish=publish,
            is_over=is_over,
            first=lambda kind: self._first(plan, kind, began),
            republished=lambda: self._hooks.republished(plan.model),
        )
        return Request(
            request_id,
            [
                OutEdge(
                    self._bus,
                    self._plane,
                    edge,
                    stage=plan.pipeline.node(edge.source).service,
                    subject=_out(self._bus, plan.pipeline, edge.source, route, request_id, edge.name),
                    request_id=request_id,
                    hop=self._hooks.hop,
                    redo_wait_s=self._limits.redo_wait_s,
                    redone=lambda: self._hooks.redone(plan.model),
                    skipped=self._hooks.skipped,
                )
                for edge in plan.pipeline.outputs()
            ],
            calls,
            deadline=deadline,
            idle_s=self._limits.idle_s,
            buffered=self._limits.buffered,
            clock=self._clock,
        )

    async def _packed(self, plan: Plan, work: AnyWork, lease_s: float) -> AnyWork:
        """The work item with its array in the tensor plane, which keeps it until the request is forgotten.

        Raises:
            TensorError: no room, or no way to the reader.
        """
        if plan.payload is None:
            return work
        near = self._fleet.table.within_reach(work.route[work.node], self._plane.locality)
        payload = await self._plane.pack(
            plan.payload, request_id=work.request_id, lease_s=max(_SHORTEST_LEASE_S, lease_s), same_host=near
        )
        return msgspec.structs.replace(work, payload=payload)

    def _first(self, plan: Plan, kind: Kind, began: float) -> None:
        self._hooks.first_event(plan.model, kind, self._clock() - began)

    def _bucket(self) -> KeyValue:
        assert self._tombstones is not None, "start() comes first"
        return self._tombstones

    def _retire(self, active: _Active) -> None:
        """Hand a request to its ending. Idempotent."""
        request = active.request
        if self._active.pop(request.request_id, None) is None:
            return
        self._hooks.finished(active.plan.model, request.outcome, self._clock() - active.began)
        if request.ended:
            active.place.release()
        self._endings.spawn(self._end(active), request.request_id)

    async def _end(self, active: _Active) -> None:
        request_id = active.request.request_id
        cancelled = not active.request.ended
        ending = Ending(self._bus, self._plane, self._bucket(), self._limits.clear_s, self._limits.late_s)
        try:
            await active.request.close()
            cleared = await ending.clear(request_id, cancelled=cancelled)
        finally:
            # A cancelled request keeps its place until its stages were told: only then are their slots free.
            active.place.release()
        if not cleared:
            self._hooks.abandoned(active.plan.model)
        elif cancelled:
            await ending.clear_late(request_id, self._closing)
        self._known.discard(request_id)

    def _ending_failed(self, error: BaseException) -> None:
        _log.error("ending_failed", **describe_error(error))


def _route(plan: Plan) -> dict[str, str]:
    """Node -> engine key, of the nodes that take part in the plan's pipeline."""
    return {node.name: plan.spec.nodes[node.name] for node in plan.pipeline.stages()}


def _work(plan: Plan, request_id: str) -> AnyWork:
    """The entry node's work item."""
    return plan.build(request_id, plan.pipeline.entry().destination, _route(plan))


def _out(bus: Bus, pipeline: Pipeline, source: str, route: Mapping[str, str], request_id: str, edge: str) -> str:
    return bus.subjects.out(pipeline.node(source).service, route[source], request_id, edge)
