"""The waiting line's policy, over a simulated clock."""

from __future__ import annotations

import contextlib
import heapq
import random
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.errors import DeadlineExceeded, RateLimited, Unavailable
from omnistage_gateway.dispatch.line import Line, LineLimits, Ticket


class World:
    """Engines with fixed capacities and a clock that the test moves."""

    def __init__(self, service_s: float = 0.0, limits: LineLimits | None = None, **capacity: int) -> None:
        self.now = 0.0
        self.slots = capacity
        self.seconds = service_s
        self.line = Line(self, limits or LineLimits(total=1000, per_tenant=1000), lambda: self.now)
        self.count = 0
        self.ends: list[tuple[float, int, Ticket]] = []

    def capacity(self, engine: str) -> int:
        return self.slots.get(engine, 0)

    def service_s(self, engine: str) -> float:
        return self.seconds

    def missing(self, engines: Iterable[str]) -> str:
        return "; ".join(f"engine {engine}" for engine in engines if not self.slots.get(engine))

    def enter(self, tenant: str = "a", *engines: str, within_s: float = 1000.0, batch: bool = False) -> Ticket:
        self.count += 1
        ticket = Ticket(f"r{self.count}", tenant, engines or ("e",), self.now + within_s, batch)
        self.line.enter(ticket)
        return ticket

    def step(self) -> list[Ticket]:
        step = self.line.step()
        assert not step.refused
        return step.admitted


def test_a_request_starts_at_once_where_every_engine_has_a_slot() -> None:
    world = World(e=1, f=1)
    first = world.enter("a", "e", "f")
    assert world.step() == [first]
    second = world.enter("a", "e")
    assert world.step() == []
    world.line.finish(first)
    assert world.step() == [second]
    assert world.line.held("e") == 1
    assert world.line.held("f") == 0


def test_within_a_tenant_the_nearest_deadline_goes_first_and_batch_goes_last() -> None:
    world = World(e=1)
    running = world.enter()
    world.step()
    batch = world.enter(within_s=5, batch=True)
    late = world.enter(within_s=50)
    soon = world.enter(within_s=10)
    order = []
    for _ in range(3):
        world.line.finish(running)
        (running,) = world.step()
        order.append(running)
    assert order == [soon, late, batch]


def test_between_tenants_with_equal_shares_the_nearest_deadline_goes_first() -> None:
    world = World(e=1)
    running = world.enter("x")
    world.step()
    world.enter("a", within_s=50)
    soon = world.enter("b", within_s=10)
    world.line.finish(running)
    assert world.step() == [soon]


def simulate(world: World, arrivals: dict[str, int], lasts: dict[str, float], until_s: float) -> dict[str, float]:
    """Closed loop: each tenant keeps so many requests in line or running; returns seconds served per tenant."""
    served: dict[str, float] = defaultdict(float)
    ends = world.ends
    noise = random.Random(7)
    for tenant, count in arrivals.items():
        for _ in range(count):
            world.enter(tenant, within_s=1e9)
    while world.now < until_s:
        for ticket in world.step():
            took = lasts[ticket.tenant] * noise.uniform(0.5, 1.5)
            served[ticket.tenant] += took
            heapq.heappush(ends, (world.now + took, world.count + len(ends) + noise.getrandbits(30), ticket))
        world.now, _, done = heapq.heappop(ends)
        world.line.finish(done)
        world.enter(done.tenant, within_s=1e9)
    return served


@pytest.mark.parametrize(
    ("arrivals", "lasts", "weights", "ratio"),
    [
        ({"a": 50, "b": 8}, {"a": 1.0, "b": 1.0}, {}, 1.0),
        ({"a": 30, "b": 30}, {"a": 0.2, "b": 3.0}, {}, 1.0),
        ({"a": 30, "b": 30}, {"a": 1.0, "b": 1.0}, {"a": 3.0}, 3.0),
        ({"a": 60, "b": 30}, {"a": 0.5, "b": 2.0}, {"b": 2.0}, 0.5),
    ],
)
def test_tenants_get_their_shares_of_slot_seconds(
    arrivals: dict[str, int], lasts: dict[str, float], weights: dict[str, float], ratio: float
) -> None:
    world = World(1.0, LineLimits(total=1000, per_tenant=1000, weights=weights), e=4)
    served = simulate(world, arrivals, lasts, until_s=2000.0)
    assert served["a"] / served["b"] == pytest.approx(ratio, rel=0.1)


def test_who_comes_rarely_does_not_wait_behind_a_flood() -> None:
    world = World(1.0, e=1)
    for _ in range(100):
        world.enter("flood")
    running = world.step()[0]
    world.now = 1.0
    rare = world.enter("rare")
    world.line.finish(running)
    assert world.step() == [rare]


def test_shares_that_were_not_used_are_not_owed() -> None:
    world = World(1.0, e=1)
    simulate(world, {"a": 5}, {"a": 1.0}, until_s=200.0)
    served = simulate(world, {"b": 20}, {"a": 1.0, "b": 1.0}, until_s=400.0)
    assert served["b"] / served["a"] == pytest.approx(1.0, rel=0.1)


def test_who_used_less_than_its_share_for_long_gets_no_more_than_it_afterwards() -> None:
    world = World(1.0, e=8)
    lasts = {"a": 1.0, "b": 1.0}
    little = simulate(world, {"a": 20, "b": 2}, lasts, until_s=200.0)
    assert little["b"] < 0.5 * little["a"]
    served = simulate(world, {"b": 20}, lasts, until_s=400.0)
    assert served["b"] / served["a"] == pytest.approx(1.0, rel=0.1)


def test_a_full_engine_does_not_hold_up_requests_for_another() -> None:
    world = World(e=1, f=1)
    world.enter("a", "e")
    world.step()
    world.enter("a", "e")
    other = world.enter("a", "f")
    assert world.step() == [other]


def test_a_long_route_is_not_passed_for_ever_by_short_ones() -> None:
    world = World(e=1, f=1)
    on_e, on_f = world.enter("a", "e"), world.enter("b", "f")
    world.step()
    both = world.enter("c", "e", "f")
    for _ in range(5):
        world.enter("a", "e")
        world.enter("b", "f")
    world.now = 1.0
    world.line.finish(on_e)
    assert world.step() == [], "the free slot of e is kept for the request that was first"
    world.line.finish(on_f)
    assert world.step() == [both]


def test_a_request_whose_engine_is_missing_keeps_no_slot_of_others() -> None:
    world = World(e=1)
    world.enter("a", "e", "gone")
    world.line.step()
    short = world.enter("b", "e")
    assert world.line.step().admitted == [short]


def test_a_tenant_that_waits_too_much_is_rate_limited() -> None:
    world = World(6.0, LineLimits(total=10, per_tenant=2), e=3)
    for _ in range(3):
        world.enter("a")
        world.step()
    world.enter("a")
    world.enter("a")
    with pytest.raises(RateLimited) as refused:
        world.enter("a")
    assert refused.value.status == 429
    assert refused.value.retry_after_s == 6.0, "three turns on three slots of 6 s"
    world.enter("b")
    assert len(world.line) == 3


def test_a_full_line_is_unavailable_and_says_when_to_come_back() -> None:
    world = World(10.0, LineLimits(total=4, per_tenant=4), e=2)
    for tenant in "aabcde":
        world.enter(tenant)
        world.step()
    with pytest.raises(Unavailable) as refused:
        world.enter("f")
    assert refused.value.status == 503
    assert refused.value.retry_after_s == 25.0, "four others and itself, 10 s each on two slots"


def test_a_request_that_cannot_start_before_its_deadline_is_refused_at_the_door() -> None:
    world = World(10.0, e=1)
    world.enter()
    world.step()
    world.enter(within_s=60)
    with pytest.raises(Unavailable) as refused:
        world.enter(within_s=15)
    assert refused.value.retry_after_s == 20.0
    assert len(world.line) == 1


def test_a_request_whose_deadline_passes_while_it_waits_is_refused() -> None:
    world = World(e=1)
    world.enter()
    world.step()
    late = world.enter(within_s=5)
    assert world.line.step().wake_at == 5.0
    world.now = 5.0
    ((ticket, error),) = world.line.step().refused
    assert ticket is late
    assert isinstance(error, DeadlineExceeded)
    assert error.status == 504
    assert error.retry_after_s is not None
    assert len(world.line) == 0


def test_a_missing_engine_is_waited_for_only_a_grace() -> None:
    world = World(limits=LineLimits(grace_s=10.0), e=1)
    ticket = world.enter("a", "e", "gone")
    step = world.line.step()
    assert (step.admitted, step.wake_at) == ([], 10.0)
    world.slots["gone"] = 1
    assert world.line.step().admitted == [ticket]


def test_the_grace_ends_with_what_is_missing_and_starts_anew_after_a_return() -> None:
    world = World(limits=LineLimits(grace_s=10.0), e=1)
    blocker = world.enter("a", "e")
    world.step()
    world.enter("a", "e", "gone")
    world.line.step()
    world.now, world.slots["gone"] = 8.0, 1
    world.line.step()
    world.slots["gone"] = 0
    assert world.line.step().wake_at == 18.0
    world.now = 18.0
    ((_, error),) = world.line.step().refused
    assert (error.status, error.code, error.message) == (503, "model_not_ready", "engine gone")
    assert error.retry_after_s == 10.0
    world.line.finish(blocker)


def test_what_comes_is_measured_in_slots_whether_it_is_let_in_or_not() -> None:
    world = World(service_s=2.0, limits=LineLimits(wait_s=0.0), e=1)
    for _ in range(600):
        world.now += 0.1
        with contextlib.suppress(Unavailable):
            world.enter("a")
    assert world.line.wanted()["e"]["a"] == pytest.approx(20.0, rel=0.05)


def test_leaving_the_line_is_idempotent_and_nothing_is_remembered_when_all_is_quiet() -> None:
    world = World(e=1)
    running, waiting = world.enter("a"), world.enter("b")
    world.step()
    world.line.leave(waiting)
    world.line.leave(waiting)
    world.line.finish(running)
    assert world.step() == []
    assert len(world.line) == world.line.running == world.line.held("e") == len(world.line._shares) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sets(st.sampled_from("efg"), min_size=1), st.floats(0.1, 30), st.booleans()
        ),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_slots_are_never_overfilled_and_everybody_starts_or_is_refused(
    requests: list[tuple[str, set[str], float, bool]], choice: random.Random
) -> None:
    world = World(1.0, e=1, f=2, g=3)
    running: list[Ticket] = []
    over = 0

    def turn() -> int:
        step = world.line.step()
        running.extend(step.admitted)
        assert all(world.line.held(engine) <= slots for engine, slots in world.slots.items())
        assert all(ticket.deadline > world.now for ticket in step.admitted)
        return len(step.admitted) + len(step.refused)

    for tenant, engines, within_s, finish in requests:
        world.now += choice.random()
        try:
            world.enter(tenant, *sorted(engines), within_s=within_s)
        except Unavailable:
            over += 1
        over += turn()
        if finish and running:
            world.line.finish(running.pop(choice.randrange(len(running))))
            over += turn()
    while running:
        world.line.finish(running.pop())
        over += turn()
    assert over == len(requests)
    assert len(world.line) == world.line.running == 0
