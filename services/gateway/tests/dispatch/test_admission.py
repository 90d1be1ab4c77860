"""The line on the event loop: wake-ups, cancellation at any moment, the timer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

import pytest

from omnistage.errors import DeadlineExceeded, Unavailable
from omnistage_gateway.dispatch.admission import Admission
from omnistage_gateway.dispatch.line import Line, LineLimits, Ticket


class Supply:
    def __init__(self, slots: int) -> None:
        self.slots = slots

    def capacity(self, engine: str) -> int:
        return self.slots

    def service_s(self, engine: str) -> float:
        return 0.0

    def missing(self, engines: Iterable[str]) -> str:
        return "" if self.slots else "no engine"


def admission(slots: int, **limits: float) -> tuple[Admission, Supply, Line]:
    supply = Supply(slots)
    line = Line(supply, LineLimits(**limits), time.monotonic)  # type: ignore[arg-type]
    return Admission(line, time.monotonic), supply, line


def ticket(name: str = "r", within_s: float = 60.0) -> Ticket:
    return Ticket(name, "a", ("e",), time.monotonic() + within_s)


async def test_a_released_place_goes_to_the_next() -> None:
    door, _, line = admission(1)
    order: list[int] = []

    async def visit(number: int) -> None:
        async with await door.enter(ticket(str(number), 60.0 + number)) as place:
            order.append(number)
            await asyncio.sleep(0)
            assert line.held("e") == 1
            place.release()

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(visit(number))
    assert order == list(range(20))
    assert (door.waiting, door.running, line.held("e")) == (0, 0, 0)


async def test_an_engine_that_becomes_ready_lets_those_in_who_wait_for_it() -> None:
    door, supply, _ = admission(0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(door.enter(ticket()))
        await asyncio.sleep(0)
        assert door.waiting == 1
        supply.slots = 1
        door.wake()
        (await task).release()
    assert door.running == 0


async def test_the_grace_ends_by_itself() -> None:
    door, _, _ = admission(0, grace_s=0.02)
    with pytest.raises(Unavailable, match="no engine"):
        await door.enter(ticket())
    assert door.waiting == 0


async def test_the_deadline_ends_the_wait_by_itself() -> None:
    door, _, _ = admission(1)
    async with await door.enter(ticket()):
        with pytest.raises(DeadlineExceeded, match="deadline"):
            await door.enter(ticket(within_s=0.02))
    assert (door.waiting, door.running) == (0, 0)


async def test_cancelled_while_waiting_it_leaves_the_line() -> None:
    door, _, _ = admission(1)
    place = await door.enter(ticket())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(door.enter(ticket()))
        await asyncio.sleep(0)
        task.cancel()
    assert door.waiting == 0
    place.release()
    place.release()
    assert door.running == 0


async def test_cancelled_at_the_moment_of_admission_it_keeps_no_slot() -> None:
    door, _, line = admission(1)
    place = await door.enter(ticket())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(door.enter(ticket()))
        await asyncio.sleep(0)
        place.release()
        task.cancel()
    assert (door.waiting, door.running, line.held("e")) == (0, 0, 0)


async def test_closing_refuses_who_waits_and_who_comes_but_not_who_runs() -> None:
    door, _, _ = admission(1)
    place = await door.enter(ticket())

    async def wait() -> None:
        with pytest.raises(Unavailable, match="shutting down"):
            await door.enter(ticket())

    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        await asyncio.sleep(0)
        assert door.waiting == 1
        door.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await door.enter(ticket())
    assert door.running == 1
    place.release()
    assert door.running == 0


async def test_no_slot_is_lost_whenever_visitors_are_cancelled() -> None:
    door, _, line = admission(3, total=500, per_tenant=500)
    noise = random.Random(3)

    async def visit() -> None:
        async with await door.enter(ticket()):
            assert line.held("e") <= 3
            for _ in range(noise.randrange(4)):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(visit()) for _ in range(300)]
        while not all(task.done() for task in tasks):
            noise.choice(tasks).cancel()
            await asyncio.sleep(0)
    assert (door.waiting, door.running, line.held("e")) == (0, 0, 0)
