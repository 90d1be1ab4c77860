"""Threads and turns: who is next, what cancelling does, and that nothing is left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from omnistage.urgency import Turns, Urgency


class Gate:
    """A call that holds the thread until it is let go; it runs already when `closed` returns."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._go = threading.Event()

    def call(self) -> str:
        self._began.set()
        assert self._go.wait(10)
        return "gate"

    async def closed(self) -> None:
        assert await asyncio.to_thread(self._began.wait, 10)

    def open(self) -> None:
        self._go.set()


@pytest.fixture(name="served")
def _served() -> list[str]:
    return []


@pytest.fixture(name="turns")
async def _turns() -> AsyncIterator[Turns]:
    turns = Turns(1, name="test", clock=lambda: 0.0)
    yield turns
    await turns.close()


def noting(served: list[str], name: str) -> Callable[[], str]:
    def call() -> str:
        served.append(name)
        return name

    return call


async def queued(turns: Turns, number: int) -> None:
    async with asyncio.timeout(10):
        while turns.waiting < number:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("by_deadline", "order"), [(True, "cdab"), (False, "abcd")])
async def test_the_smallest_due_is_next_and_ties_go_by_arrival(
    served: list[str], by_deadline: bool, order: str
) -> None:
    turns, gate = Turns(1, name="test", by_deadline=by_deadline, clock=lambda: 0.0), Gate()
    async with asyncio.TaskGroup() as group:
        group.create_task(turns.run(Urgency(now=0.0), gate.call))
        await gate.closed()
        for number, (name, now) in enumerate([("a", 9.0), ("b", 9.0), ("c", 3.0), ("d", 4.0)], start=1):
            group.create_task(turns.run(Urgency(now=now), noting(served, name)))
            await queued(turns, number)
        gate.open()
    assert "".join(served) == order
    await turns.close()


async def test_what_changes_while_it_waits_counts(turns: Turns, served: list[str]) -> None:
    gate, first, second = Gate(), Urgency(now=1.0), Urgency(now=2.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(turns.run(Urgency(now=0.0), gate.call))
        await gate.closed()
        group.create_task(turns.run(first, noting(served, "first")))
        group.create_task(turns.run(second, noting(served, "second")))
        await queued(turns, 2)
        first.made(60.0, 1.0)
        gate.open()
    assert served == ["second", "first"]


async def test_a_call_that_is_cancelled_while_it_waits_never_runs(turns: Turns, served: list[str]) -> None:
    gate = Gate()
    running = asyncio.ensure_future(turns.run(Urgency(now=0.0), gate.call))
    await gate.closed()
    left = asyncio.ensure_future(turns.run(Urgency(now=1.0), noting(served, "left")))
    stays = asyncio.ensure_future(turns.run(Urgency(now=2.0), noting(served, "stays")))
    await queued(turns, 2)
    left.cancel()
    await asyncio.wait({left})
    gate.open()
    assert (await running, await stays) == ("gate", "stays")
    assert served == ["stays"]
    assert turns.waiting == 0


async def test_a_call_that_is_cancelled_while_it_runs_runs_out(turns: Turns) -> None:
    gate = Gate()
    running = asyncio.ensure_future(turns.run(Urgency(now=0.0), gate.call))
    await gate.closed()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    following = asyncio.ensure_future(turns.run(Urgency(now=0.0), lambda: "following"))
    await queued(turns, 1)
    gate.open()
    assert await following == "following"


async def test_an_error_reaches_its_own_caller_only(turns: Turns) -> None:
    def fail() -> str:
        raise ValueError("mine")

    failing, good = await asyncio.gather(
        turns.run(Urgency(now=0.0), fail), turns.run(Urgency(now=1.0), lambda: "good"), return_exceptions=True
    )
    assert isinstance(failing, ValueError)
    assert good == "good"


async def test_as_many_run_at_once_as_there_are_threads() -> None:
    turns = Turns(2, name="test")
    meeting = threading.Barrier(2, timeout=10)
    await asyncio.gather(*(turns.run(Urgency(now=0.0), meeting.wait) for _ in range(2)))
    await turns.close()


async def test_closing_cancels_what_waits_and_waits_for_what_runs(served: list[str]) -> None:
    turns, gate = Turns(1, name="test"), Gate()
    running = asyncio.ensure_future(turns.run(Urgency(now=0.0), gate.call))
    await gate.closed()
    waits = asyncio.ensure_future(turns.run(Urgency(now=0.0), noting(served, "waits")))
    await queued(turns, 1)
    closing = asyncio.ensure_future(turns.close())
    await asyncio.wait({waits})
    assert not closing.done()
    gate.open()
    await closing
    assert waits.cancelled()
    assert await running == "gate"
    assert served == []
    with pytest.raises(RuntimeError):
        await turns.run(Urgency(now=0.0), lambda: None)
    await turns.close()
