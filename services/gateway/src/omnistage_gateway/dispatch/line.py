"""The waiting line: who may start, who waits, who is refused. Pure policy: no event loop, the clock is passed in.

A request starts when every engine on its route has a slot free for this gateway. Among those that could start, the
tenant with the least virtual time goes first, and of its requests the one with the nearest deadline (batch after
interactive). The first request in that order that cannot start keeps one free slot of each of its engines for itself:
otherwise requests with shorter routes could pass it for ever.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from omnistage.errors import DeadlineExceeded, OmnistageError, RateLimited, Unavailable
from omnistage_gateway.dispatch.bookings import Bookings, Others
from omnistage_gateway.dispatch.credits import Demand
from omnistage_gateway.dispatch.shares import Shares

_SMOOTHING = 0.1
"""Weight of the newest request in the moving average of service time."""

DEFAULT_COST_S = 1.0
"""Charged for a request while no engine on its route has measured anything."""


class Supply(Protocol):
    """What the line asks about engines; `Fleet` answers."""

    def capacity(self, engine: str) -> int:
        """Slots that this gateway may fill; 0 while no instance is ready."""
        ...

    def service_s(self, engine: str) -> float:
        """Mean seconds that a request holds a slot; 0 if unknown."""
        ...

    def missing(self, engines: Iterable[str]) -> str:
        """Which of the engines are ready nowhere, and why; empty if all are."""
        ...


@dataclass(frozen=True)
class LineLimits:
    """How long the line may get.

    Attributes:
        total: requests that wait, of all tenants.
        per_tenant: requests of one tenant that wait.
        grace_s: how long a request waits for an engine that is ready nowhere.
        wait_s: a request that would have to wait longer is refused at the door.
        weights: tenant -> its weight in fair shares; others weigh 1.
    """

    total: int = 256
    per_tenant: int = 64
    grace_s: float = 10.0
    wait_s: float = math.inf
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Ticket:
    """A request's place in the line.

    Attributes:
        engines: the engines on its route, each once.
        deadline: clock reading after which nobody waits for it.
        key: what a client is recognized by that comes back; empty for nobody.
        entered, started: clock readings, set by the line.
    """

    request_id: str
    tenant: str
    engines: tuple[str, ...]
    deadline: float
    batch: bool = False
    key: str = ""
    entered: float = 0.0
    started: float | None = None
    cost_s: float = 0.0
    missing_since: float | None = None

    @property
    def urgency(self) -> tuple[bool, float, float]:
        return (self.batch, self.deadline, self.entered)


@dataclass(frozen=True)
class Step:
    """What the line decided.

    Attributes:
        admitted: may start now; each holds a slot of its engines until `Line.finish`.
        refused: are no longer in the line, and why.
        wake_at: clock reading at which to ask again even if nothing happens; None if never.
    """

    admitted: list[Ticket]
    refused: list[tuple[Ticket, OmnistageError]]
    wake_at: float | None


class Line:
    """The line of one gateway.

    Args:
        supply: what there is of engines.
        limits: how long it may get.
        clock: monotonic seconds.
        others: the other gateways, which are told of promises.
    """

    def __init__(
        self, supply: Supply, limits: LineLimits, clock: Callable[[], float], others: Others | None = None
    ) -> None:
        self._supply = supply
        self._limits = limits
        self._clock = clock
        self._shares = Shares(limits.weights)
        self.bookings = Bookings(clock, others)
        self._demand = Demand(clock)
        self._hold_s: dict[str, float] = {}
        self._waiting: dict[Ticket, None] = {}
        self._by_tenant: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold slots."""
        return self._running.total()

    def held(self, engine: str) -> int:
        """Slots of an engine that this gateway fills."""
        return self._held[engine]

    def enter(self, ticket: Ticket) -> None:
        """Join the line; call `step` afterwards.

        Raises:
            RateLimited: the tenant has too many requests waiting.
            Unavailable: the line is full, or too long for the request's deadline, or for anybody; or what is free
                was promised to others.
        """
        self.bookings.expire()
        self._demand.came(ticket.engines, ticket.tenant)
        wait_s = self.expected_wait_s(ticket)
        ticket.entered = self._clock()
        if self._by_tenant[ticket.tenant] >= self._limits.per_tenant:
            raise RateLimited(
                f"{self._limits.per_tenant} requests of this key are waiting already",
                retry_after_s=self._promise_s(ticket, wait_s),
            )
        if len(self._waiting) >= self._limits.total:
            raise Unavailable("too many requests are waiting", retry_after_s=self._promise_s(ticket, wait_s))
        if ticket.entered + wait_s >= ticket.deadline:
            raise Unavailable(
                f"the line is about {wait_s:.0f} s long, longer than the request may take",
                retry_after_s=self._promise_s(ticket, wait_s),
            )
        if not self.bookings.claim(ticket.key) and (wait_s > self._limits.wait_s or self._is_promised(ticket)):
            raise Unavailable("everything is busy", retry_after_s=self._promise_s(ticket, wait_s))
        if not self._by_tenant[ticket.tenant]:
            self._shares.arrive(ticket.tenant)
        self._waiting[ticket] = None
        self._by_tenant[ticket.tenant] += 1

    def wanted(self) -> dict[str, dict[str, float]]:
        """Engine -> tenant -> slots that the requests which come now would fill, let in or not."""
        return {
            engine: {tenant: rate * self._service_s(engine) for tenant, rate in tenants.items()}
            for engine, tenants in self._demand.rates().items()
        }

    def leave(self, ticket: Ticket) -> None:
        """Give up waiting. Idempotent."""
        if ticket in self._waiting:
            self._drop(ticket)
            self._settle()

    def finish(self, ticket: Ticket) -> None:
        """Give the slots back; call `step` afterwards. To be called once for each admitted ticket."""
        assert ticket.started is not None
        for engine in ticket.engines:
            self._held[engine] -= 1
        self._running[ticket.tenant] -= 1
        self._measure(ticket, self._clock() - ticket.started)
        self._shares.correct(ticket.tenant, ticket.cost_s, self._clock() - ticket.started)
        self._settle()

    def step(self) -> Step:
        """Decide who starts and who is refused now."""
        now = self._clock()
        refused = [(ticket, error) for ticket in self._waiting if (error := self._overdue(ticket, now)) is not None]
        for ticket, _ in refused:
            self._drop(ticket)
        admitted = self._admit(now) if self._waiting else []
        self._settle()
        return Step(admitted, refused, self._wake_at())

    def expected_wait_s(self, ticket: Ticket) -> float:
        """Seconds until a request that came now would start: those ahead of it, at the measured pace of the engine
        that is the narrowest on its route; 0 where a slot is free or nothing was measured."""
        return max((self._engine_wait_s(engine, ticket) for engine in ticket.engines), default=0.0)

    def _engine_wait_s(self, engine: str, ticket: Ticket) -> float:
        capacity = self._supply.capacity(engine)
        ahead = self._ahead(engine, ticket)
        if capacity == 0 or self._held[engine] + ahead < capacity:
            return 0.0
        turns = self._held[engine] + ahead - capacity + 1
        return turns * self._service_s(engine) / capacity

    def _service_s(self, engine: str) -> float:
        """Seconds that a request holds a slot: as this gateway sees it, since it keeps the slots of a whole route until
        the request is over; before any was, what the engine itself has measured."""
        return self._hold_s.get(engine) or self._supply.service_s(engine)

    def _measure(self, ticket: Ticket, seconds: float) -> None:
        for engine in ticket.engines:
            before = self._hold_s.get(engine, seconds)
            self._hold_s[engine] = before + _SMOOTHING * (seconds - before)

    def _is_promised(self, ticket: Ticket) -> bool:
        """Whether what is free on the request's route was promised to others who are to come back before a request
        that started now would be done."""
        if not len(self.bookings):
            return False
        waiting = Counter(engine for other in self._waiting for engine in other.engines)
        return any(
            self._supply.capacity(engine) - self._held[engine] - waiting[engine]
            <= self.bookings.reserved(engine, self._service_s(engine))
            for engine in ticket.engines
        )

    def _promise_s(self, ticket: Ticket, wait_s: float) -> float:
        """Seconds after which a refused request may come back; room is kept for it then."""
        if (promised_s := self.bookings.wait_s(ticket.key)) is not None:
            return _retry_s(promised_s)
        paces = [
            self._service_s(engine) / capacity
            for engine in ticket.engines
            if (capacity := self._supply.capacity(engine)) > 0
        ]
        others = (self.bookings.tenants() | set(self._by_tenant) | set(self._running)) - {ticket.tenant}
        weight = self._shares.weight(ticket.tenant)
        share = weight / (weight + sum(map(self._shares.weight, others)))
        spacing_s = max(paces, default=0.0) / share
        return self.bookings.book(ticket.key, ticket.tenant, ticket.engines, wait_s, spacing_s)

    def _ahead(self, engine: str, ticket: Ticket) -> int:
        """Waiting requests that use the engine and would start first: the tenant's own, and of each other tenant no
        more than its fair share."""
        per_tenant = Counter(other.tenant for other in self._waiting if engine in other.engines)
        own = per_tenant.pop(ticket.tenant, 0)
        share = (own + 1) / self._shares.weight(ticket.tenant)
        return own + sum(min(count, round(share * self._shares.weight(name))) for name, count in per_tenant.items())

    def _overdue(self, ticket: Ticket, now: float) -> OmnistageError | None:
        """Why a waiting request is to be refused now, if it is. Notes since when an engine is missing."""
        missing = self._supply.missing(ticket.engines)
        if not missing:
            ticket.missing_since = None
        elif ticket.missing_since is None:
            ticket.missing_since = now
        if ticket.missing_since is not None and now >= ticket.missing_since + self._limits.grace_s:
            return Unavailable(missing, code="model_not_ready", retry_after_s=_retry_s(self._limits.grace_s))
        if now >= ticket.deadline:
            wait_s = self.expected_wait_s(ticket)
            return DeadlineExceeded("no slot became free before the request's deadline", retry_after_s=_retry_s(wait_s))
        return None

    def _admit(self, now: float) -> list[Ticket]:
        free = {engine: self._supply.capacity(engine) - self._held[engine] for engine in self._engines()}
        if all(slots <= 0 for slots in free.values()):
            return []
        admitted: list[Ticket] = []
        reserved = False
        queues = self._queues()
        order = [(self._shares.start(tenant), queue[0].urgency, tenant) for tenant, queue in queues.items()]
        heapq.heapify(order)
        while order:
            _, _, tenant = heapq.heappop(order)
            queue = queues[tenant]
            ticket = queue.pop(0)
            if all(free[engine] > 0 for engine in ticket.engines):
                self._begin(ticket, now)
                admitted.append(ticket)
                _take(free, ticket.engines)
            elif not reserved and ticket.missing_since is None:
                reserved = True
                _take(free, ticket.engines)
            if queue:
                heapq.heappush(order, (self._shares.start(tenant), queue[0].urgency, tenant))
        return admitted

    def _begin(self, ticket: Ticket, now: float) -> None:
        self._drop(ticket)
        ticket.started = now
        ticket.cost_s = max(map(self._supply.service_s, ticket.engines), default=0.0) or DEFAULT_COST_S
        self._shares.charge(ticket.tenant, ticket.cost_s)
        self._running[ticket.tenant] += 1
        for engine in ticket.engines:
            self._held[engine] += 1

    def _drop(self, ticket: Ticket) -> None:
        del self._waiting[ticket]
        self._by_tenant[ticket.tenant] -= 1

    def _engines(self) -> set[str]:
        return {engine for ticket in self._waiting for engine in ticket.engines}

    def _queues(self) -> dict[str, list[Ticket]]:
        """Waiting requests by tenant, the most urgent first."""
        queues: dict[str, list[Ticket]] = {}
        for ticket in sorted(self._waiting, key=lambda waiting: waiting.urgency):
            queues.setdefault(ticket.tenant, []).append(ticket)
        return queues

    def _wake_at(self) -> float | None:
        ends = [ticket.deadline for ticket in self._waiting]
        ends += [
            ticket.missing_since + self._limits.grace_s for ticket in self._waiting if ticket.missing_since is not None
        ]
        return min(ends, default=None)

    def _settle(self) -> None:
        """Forget whom nothing needs to be remembered of: what is kept is bounded by who waits, runs or owes."""
        for counter in (self._by_tenant, self._held, self._running):
            for name in [name for name, count in counter.items() if count == 0]:
                del counter[name]
        self._shares.settle(self._by_tenant | self._running, busy=bool(self._waiting))


def _take(free: dict[str, int], engines: Iterable[str]) -> None:
    for engine in engines:
        free[engine] -= 1


def _retry_s(wait_s: float) -> float:
    """Seconds to tell a client to stay away: whole seconds, at least one (Retry-After has no fractions)."""
    return float(max(1, -(-wait_s // 1)))
