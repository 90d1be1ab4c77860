"""The pace of a request, on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.pacing import Pacer


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pacer(self, rate: float | None) -> Pacer:
        return Pacer(rate, clock=self.clock, sleep=self.sleep)


async def test_each_result_waits_for_the_time_of_the_one_before() -> None:
    time = Time()
    pacer = time.pacer(20.0)
    left = []
    for units in (10, 40, 5, 1):
        await pacer.release(units)
        left.append(time.now)
    assert left == pytest.approx([100.0, 100.5, 102.5, 102.75])


async def test_time_lost_is_not_made_up_for() -> None:
    time = Time()
    pacer = time.pacer(2.0)
    await pacer.release(2)
    time.now += 7.0
    await pacer.release(4)
    assert time.slept == []
    await pacer.release(1)
    assert time.slept == pytest.approx([2.0])


async def test_without_a_rate_nothing_waits() -> None:
    time = Time()
    pacer = time.pacer(None)
    for _ in range(3):
        await pacer.release(1e9)
    assert time.slept == []


async def test_a_wait_can_be_cancelled_and_counts_for_nothing() -> None:
    waiting = asyncio.Event()

    async def forever(_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    time = Time()
    pacer = Pacer(1.0, clock=time.clock, sleep=forever)
    await pacer.release(3)
    held = asyncio.ensure_future(pacer.release(3))
    await waiting.wait()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    time.now += 3.0
    await pacer.release(1)


async def test_the_true_clock_is_kept() -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(100.0)
    began = loop.time()
    for _ in range(5):
        await pacer.release(2)
    assert loop.time() - began >= 0.079
