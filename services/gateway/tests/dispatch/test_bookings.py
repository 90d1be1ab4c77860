"""Whoever was refused and comes back when told to is let in; nobody else takes the room kept for it."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from omnistage.errors import OmnistageError, Unavailable
from omnistage_gateway.dispatch.bookings import EARLY_S, GRACE_S, Bookings
from omnistage_gateway.dispatch.line import Line, LineLimits, Ticket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_promise_is_kept_once_from_its_time_on() -> None:
    clock = Clock()
    bookings = Bookings(clock)
    assert bookings.book("k", "t", ("e",), 2.4, 1.0) == 3.0
    assert not bookings.claim("k")
    clock.now += 3.0 - EARLY_S
    assert not bookings.claim("other")
    assert bookings.claim("k")
    assert not bookings.claim("k")
    assert len(bookings) == 0


def test_promises_of_one_key_are_spaced_by_its_share_of_the_pace() -> None:
    bookings = Bookings(Clock())
    waits = [bookings.book(f"k{number}", "t", ("e",), 1.0, 10.0) for number in range(4)]
    assert waits == [1.0, 13.0, 25.0, 37.0]
    assert bookings.book("x", "another", ("e",), 1.0, 10.0) == 1.0


def test_a_promise_that_was_not_taken_up_ends_and_less_is_kept_for_the_next() -> None:
    clock = Clock()
    bookings = Bookings(clock)
    for number in range(100):
        bookings.book(f"k{number}", "t", ("e",), 0.0, 0.0)
    assert bookings.reserved("e", 5.0) == 100
    assert bookings.reserved("another", 5.0) == 0
    clock.now += 1.0 + GRACE_S + 0.1
    bookings.expire()
    assert len(bookings) == 0
    assert bookings.kept < 0.02
    bookings.book("late", "t", ("e",), 0.0, 0.0)
    assert bookings.reserved("e", 5.0) == 1, "one is always kept"


def test_who_is_not_recognized_is_promised_nothing() -> None:
    bookings = Bookings(Clock())
    assert bookings.book("", "t", ("e",), 2.5, 1.0) == 3.0
    assert len(bookings) == 0


@dataclass(order=True)
class Arrival:
    at: float
    number: int
    tenant: str = field(compare=False)
    tries: int = field(default=1, compare=False)


class Simulation:
    """Clients that come to one gateway at random, on a clock that jumps; those refused come back when told to."""

    def __init__(self, slots: int, service_s: float, *, returning: float = 1.0, wait_s: float = 0.0) -> None:
        self.clock = Clock()
        self.slots = slots
        self.noise = random.Random(7)
        self.mean_s = service_s
        self.returning = returning
        self.line = Line(self, LineLimits(total=1000, per_tenant=1000, wait_s=wait_s), self.clock)
        self.first: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.waits: list[float] = []
        self.let_in: list[tuple[float, str]] = []
        self.ends: list[float] = []
        self._ids = itertools.count()

    def capacity(self, engine: str) -> int:
        return self.slots

    def service_s(self, engine: str) -> float:
        return self.mean_s

    def missing(self, engines: Iterable[str]) -> str:
        return ""

    def run(self, rates: dict[str, float], seconds: float) -> None:
        """Newcomers for so long, then until everybody has had an answer."""
        began = self.clock.now
        events: list[tuple[float, int, Arrival | Ticket]] = []

        def add(at: float, event: Arrival | Ticket) -> None:
            heapq.heappush(events, (at, next(self._ids), event))

        for tenant, rate in rates.items():
            at = began
            while (at := at + self.noise.expovariate(rate)) < began + seconds:
                add(at, Arrival(at, next(self._ids), tenant))
        while events:
            self.clock.now, _, event = heapq.heappop(events)
            if isinstance(event, Ticket):
                self.line.finish(event)
                self.ends.append(self.clock.now)
            elif (back_s := self._come(event)) is not None and self.noise.random() < self.returning:
                event.tries += 1
                add(self.clock.now + back_s + self.noise.uniform(0.005, 0.05), event)
            for ticket in self.line.step().admitted:
                self.waits.append(self.clock.now - ticket.entered)
                add(self.clock.now + self.noise.uniform(0.7, 1.3) * self.mean_s, ticket)

    def _come(self, arrival: Arrival) -> float | None:
        """Seconds to stay away, None if let in."""
        ticket = Ticket(
            request_id=str(arrival.number), tenant=arrival.tenant, engines=("e",), deadline=self.clock.now + 300,
            key=str(arrival.number),
        )  # fmt: skip
        try:
            self.line.enter(ticket)
        except OmnistageError as error:
            if arrival.tries > 1:
                self.broken[arrival.tenant] += 1
            return error.retry_after_s or 0.0
        self.let_in.append((self.clock.now, arrival.tenant))
        (self.first if arrival.tries == 1 else self.kept)[arrival.tenant] += 1
        return None


def test_ten_times_the_capacity() -> None:
    """All who wait as told are let in at their next try, and then hardly wait."""
    world = Simulation(slots=8, service_s=1.0)
    world.run({"t": 80.0}, 60.0)
    kept, broken = world.kept.total(), world.broken.total()
    assert kept > 3000
    assert broken <= 0.05 * (kept + broken)
    world.waits.sort()
    assert world.waits[len(world.waits) // 2] < 0.05
    assert world.waits[int(0.95 * len(world.waits))] < 0.5, "half of a request's own time"


def test_the_slots_are_used_though_they_are_promised() -> None:
    world = Simulation(slots=8, service_s=1.0)
    world.run({"t": 80.0}, 60.0)
    assert len([end for end in world.ends if end < 160.0]) > 0.75 * 8 * 60


@pytest.mark.parametrize("returning", [0.0, 0.3])
def test_clients_that_do_not_come_back_waste_no_slots(returning: float) -> None:
    world = Simulation(slots=8, service_s=1.0, returning=returning)
    world.run({"t": 80.0}, 120.0)
    assert len([end for end in world.ends if 130.0 < end < 220.0]) > 0.75 * 8 * 90


@pytest.mark.parametrize("rates", [{"a": 40.0, "b": 40.0}, {"a": 60.0, "b": 20.0}])
def test_two_keys_get_equal_shares(rates: dict[str, float]) -> None:
    world = Simulation(slots=8, service_s=1.0)
    world.run(rates, 60.0)
    # While both still have some that were not served; afterwards who is left has everything.
    until = min(max(at for at, tenant in world.let_in if tenant == name) for name in rates)
    served = Counter(tenant for at, tenant in world.let_in if at <= until)
    assert served["a"] + served["b"] > 2000
    assert abs(served["a"] - served["b"]) <= 0.1 * max(served.values())
    assert sum(world.broken.values()) < 0.05 * sum(world.kept.values())


def test_without_overload_nobody_is_refused() -> None:
    world = Simulation(slots=8, service_s=1.0, wait_s=1.0)
    world.run({"t": 4.0}, 300.0)
    assert world.kept.total() + world.broken.total() == 0


def test_a_newcomer_does_not_take_what_is_promised() -> None:
    world = Simulation(slots=1, service_s=10.0)
    first, second, third = (
        Ticket(request_id=name, tenant="t", engines=("e",), deadline=1e9, key=name) for name in ("1", "2", "3")
    )
    world.line.enter(first)
    world.line.step()
    world.clock.now += 9.5
    with pytest.raises(Unavailable) as promised:
        world.line.enter(second)
    assert promised.value.retry_after_s == 10.0
    world.clock.now += 0.5
    world.line.finish(first)
    with pytest.raises(Unavailable) as refused:
        world.line.enter(third)
    assert refused.value.code == "unavailable"
    world.clock.now += 9.5
    world.line.enter(second)
    assert world.line.step().admitted == [second]
