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
from omnistage_gateway.dispatch.bookings import EARLY_S, GRACE_S, HEADROOM, Booking, Bookings
from omnistage_gateway.dispatch.credits import Grant, divide
from omnistage_gateway.dispatch.fleet_table import HOLD_S
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
    assert waits == [1.0 + number * 10.0 * HEADROOM for number in range(4)]
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


def test_a_promise_of_another_gateway_is_kept_and_taught_nothing() -> None:
    clock = Clock()
    bookings = Bookings(clock)
    bookings.heard(Booking("k", clock.now + 2.0, ("e",)))
    bookings.heard(Booking("gone", clock.now + 2.0, ("e",)))
    assert bookings.wait_s("k") == 2.0
    assert bookings.reserved("e", 3.0) == 2
    clock.now += 2.0
    assert bookings.claim("k")
    bookings.heard_claimed("gone")
    bookings.heard_claimed("gone")
    assert len(bookings) == 0
    bookings.heard(Booking("late", clock.now, ("e",)))
    clock.now += GRACE_S + 0.1
    bookings.expire()
    assert len(bookings) == 0
    assert bookings.kept == 1.0, "whoever made the promise learns from it"


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


class Others:
    """What one gateway tells the others reaches them at once."""

    def __init__(self, own: int, gateways: int, lines: list[Line]) -> None:
        self._own = own
        self.gateways = gateways
        self._lines = lines

    def part(self, engine: str) -> float:
        return 1 / self.gateways

    def booked(self, booking: Booking) -> None:
        for number, line in enumerate(self._lines):
            if number != self._own:
                line.bookings.heard(Booking(booking.key, booking.due, booking.engines))

    def claimed(self, key: str) -> None:
        for number, line in enumerate(self._lines):
            if number != self._own:
                line.bookings.heard_claimed(key)


class Simulation:
    """Clients that come at random, each time to any gateway, on a clock that jumps; those refused come back when told.

    Args:
        slots: of each gateway.
    """

    def __init__(
        self, slots: int, service_s: float, *, returning: float = 1.0, wait_s: float = 0.0, gateways: int = 1
    ) -> None:
        self.clock = Clock()
        self.slots = slots
        self.noise = random.Random(7)
        self.mean_s = service_s
        self.returning = returning
        limits = LineLimits(total=1000, per_tenant=1000, wait_s=wait_s)
        self.lines: list[Line] = []
        for number in range(gateways):
            self.lines.append(Line(self, limits, self.clock, Others(number, gateways, self.lines)))
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
        events: list[tuple[float, int, Arrival | tuple[Line, Ticket]]] = []

        def add(at: float, event: Arrival | tuple[Line, Ticket]) -> None:
            heapq.heappush(events, (at, next(self._ids), event))

        for tenant, rate in rates.items():
            at = began
            while (at := at + self.noise.expovariate(rate)) < began + seconds:
                add(at, Arrival(at, next(self._ids), tenant))
        while events:
            self.clock.now, _, event = heapq.heappop(events)
            if isinstance(event, tuple):
                line, ticket = event
                line.finish(ticket)
                self.ends.append(self.clock.now)
            elif (
                back_s := self._come(event, line := self.choose())
            ) is not None and self.noise.random() < self.returning:
                event.tries += 1
                add(self.clock.now + back_s + self.noise.uniform(0.005, 0.05), event)
            for ticket in line.step().admitted:
                self.waits.append(self.clock.now - ticket.entered)
                add(self.clock.now + self.noise.uniform(0.7, 1.3) * self.mean_s, (line, ticket))

    def choose(self) -> Line:
        """The gateway that a client comes to."""
        return self.noise.choice(self.lines)

    def _come(self, arrival: Arrival, line: Line) -> float | None:
        """Seconds to stay away, None if let in."""
        ticket = Ticket(
            request_id=str(arrival.number), tenant=arrival.tenant, engines=("e",), deadline=self.clock.now + 300,
            key=str(arrival.number),
        )  # fmt: skip
        try:
            line.enter(ticket)
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


class Divided(Simulation):
    """Two gateways, one of which four in five clients come to each time; they divide the slots as gateways do."""

    EVERY_S = 0.5

    def __init__(self, slots: int, service_s: float) -> None:
        super().__init__(slots, service_s, wait_s=0.1)
        self.parts = {"0": slots // 2, "1": slots // 2}
        self.next_s = 0.0
        self.lines = []
        limits = LineLimits(total=1000, per_tenant=1000, wait_s=0.1)
        for number in range(2):
            supply = Part(self, str(number))
            self.lines.append(Line(supply, limits, self.clock, PartOthers(number, 2, self.lines, supply)))

    def choose(self) -> Line:
        return self.lines[0 if self.noise.random() < 0.8 else 1]

    def part(self, name: str) -> int:
        if self.clock.now >= self.next_s:
            self.next_s = self.clock.now + self.EVERY_S
            wanted = {str(number): line.wanted().get("e", {}) for number, line in enumerate(self.lines)}
            self.parts = divide(self.slots, wanted)
        return self.parts[name]


class Part:
    """What one gateway may use, as its fleet tells it."""

    def __init__(self, world: Divided, name: str) -> None:
        self._world = world
        self._name = name
        self._grant = Grant(world.clock)

    def capacity(self, engine: str) -> int:
        return self._grant.use(self._world.part(self._name), self._world.slots, HOLD_S + self._world.mean_s)

    def service_s(self, engine: str) -> float:
        return self._world.mean_s

    def missing(self, engines: Iterable[str]) -> str:
        return ""


class PartOthers(Others):
    def __init__(self, own: int, gateways: int, lines: list[Line], supply: Part) -> None:
        super().__init__(own, gateways, lines)
        self._supply = supply

    def part(self, engine: str) -> float:
        return self._supply.capacity(engine) / 8


def test_where_most_clients_come_to_one_gateway_it_has_most_of_the_slots() -> None:
    world = Divided(slots=8, service_s=1.15)
    world.run({"a": 46.0, "b": 23.0}, 60.0)
    assert sum(world.broken.values()) <= 0.01 * sum(world.kept.values())
    assert len([end for end in world.ends if 110.0 < end < 160.0]) * 1.15 > 0.5 * 8 * 50
    world.waits.sort()
    assert world.waits[int(0.9 * len(world.waits))] < 0.5, "14 times a request's own time with equal parts"
    until = min(max(at for at, tenant in world.let_in if tenant == name) for name in ("a", "b"))
    served = Counter(tenant for at, tenant in world.let_in if at <= until)
    assert abs(served["a"] - served["b"]) <= 0.1 * max(served.values())


@pytest.mark.parametrize("gateways", [2, 4])
def test_whichever_gateway_a_client_comes_back_to_keeps_the_promise(gateways: int) -> None:
    world = Simulation(slots=4, service_s=0.8, gateways=gateways)
    world.run({"a": 33.0 * gateways, "b": 17.0 * gateways}, 60.0)
    kept, broken = world.kept.total(), world.broken.total()
    assert kept > 2500 * gateways
    assert broken <= 0.01 * (kept + broken)
    world.waits.sort()
    assert world.waits[len(world.waits) // 2] < 0.05
    assert world.waits[int(0.75 * len(world.waits))] < 0.4, "half of a request's own time"
    until = min(max(at for at, tenant in world.let_in if tenant == name) for name in ("a", "b"))
    served = Counter(tenant for at, tenant in world.let_in if at <= until)
    assert abs(served["a"] - served["b"]) <= 0.1 * max(served.values())


def test_the_slots_are_used_though_they_are_promised() -> None:
    world = Simulation(slots=8, service_s=1.0)
    world.run({"t": 80.0}, 60.0)
    assert len([end for end in world.ends if end < 160.0]) > 0.75 * 8 * 60


@pytest.mark.parametrize("returning", [0.0, 0.3])
def test_clients_that_do_not_come_back_waste_no_slots(returning: float) -> None:
    world = Simulation(slots=8, service_s=1.0, returning=returning)
    world.run({"t": 80.0}, 120.0)
    assert len([end for end in world.ends if 130.0 < end < 220.0]) > 0.7 * 8 * 90


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
    world.run({"t": 3.0}, 300.0)
    assert world.kept.total() + world.broken.total() == 0


def test_a_newcomer_does_not_take_what_is_promised() -> None:
    world = Simulation(slots=1, service_s=10.0)
    first, second, third = (
        Ticket(request_id=name, tenant="t", engines=("e",), deadline=1e9, key=name) for name in ("1", "2", "3")
    )
    world.lines[0].enter(first)
    world.lines[0].step()
    world.clock.now += 9.5
    with pytest.raises(Unavailable) as promised:
        world.lines[0].enter(second)
    assert promised.value.retry_after_s == 10.0
    world.clock.now += 0.5
    world.lines[0].finish(first)
    with pytest.raises(Unavailable) as refused:
        world.lines[0].enter(third)
    assert refused.value.code == "unavailable"
    world.clock.now += 9.5
    world.lines[0].enter(second)
    assert world.lines[0].step().admitted == [second]
