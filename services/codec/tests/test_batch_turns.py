"""Coalescing, order, isolation and closing of the threads that run a model for several requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from omnistage.errors import OmnistageError, StageFailed
from omnistage.stall import StallWatch
from omnistage.urgency import Urgency
from omnistage_codec.engine.batch_turns import BatchTurns
from omnistage_codec.engine.coalescing import Coalescing

WINDOW = Coalescing(target=4, window_s=0.012, max_batch=8)


@pytest.mark.parametrize(
    ("waiting", "live", "waited_s", "expected_s"),
    [
        (4, 8, 0.0, 0.0),  # the target is met
        (7, 8, 0.0, 0.0),
        (1, 3, 0.0, 0.0),  # too few live to reach it
        (1, 8, 0.0, 0.012),
        (3, 8, 0.005, 0.007),  # later arrivals prolong nothing
        (3, 8, 0.012, 0.0),
        (3, 8, 0.5, 0.0),
        (1, 0, 0.0, 0.0),
    ],
)
def test_how_long_a_batch_waits(waiting: int, live: int, waited_s: float, expected_s: float) -> None:
    assert WINDOW.wait_s(waiting=waiting, live=live, waited_s=waited_s) == pytest.approx(expected_s)


def test_no_window_and_small_batches_never_wait() -> None:
    assert Coalescing(target=4, window_s=0.0).wait_s(waiting=1, live=9, waited_s=0.0) == 0.0
    assert Coalescing(target=40, window_s=1.0, max_batch=2).wait_s(waiting=2, live=99, waited_s=0.0) == 0.0
    assert Coalescing(target=4, window_s=1.0).wait_s(waiting=4, live=4, waited_s=0.0) == 0.0


class Model:
    """Doubles numbers; can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go = threading.Event()
        self.go.set()
        self.running = threading.Event()

    def __call__(self, items: Sequence[Any]) -> Sequence[Any]:
        self.batches.append(list(items))
        self.running.set()
        assert self.go.wait(10)
        if "crash" in items:
            raise ZeroDivisionError("crash")
        if "short" in items:
            return []
        return [StageFailed("odd") if item == "bad" else item * 2 for item in items]


@asynccontextmanager
async def turns_of(
    model: Callable[[Sequence[Any]], Sequence[Any]], coalescing: Coalescing, live: int = 99
) -> AsyncIterator[BatchTurns[Any, Any]]:
    turns: BatchTurns[Any, Any] = BatchTurns(
        model, name="test", coalescing=coalescing, live=lambda: live, watch=StallWatch(10.0)
    )
    try:
        yield turns
    finally:
        await turns.close()


def due(at: float) -> Urgency:
    urgency = Urgency(now=0.0)
    urgency.due = at
    return urgency


async def test_what_comes_within_the_window_runs_together() -> None:
    model = Model()
    async with turns_of(model, Coalescing(target=3, window_s=5.0, max_batch=8)) as turns:
        results = [*await asyncio.gather(*(turns.run(due(1.0), number) for number in (1, 2, 3)))]
    assert results == [2, 4, 6]
    assert [sorted(batch) for batch in model.batches] == [[1, 2, 3]]


async def test_the_window_ends_without_the_target() -> None:
    model = Model()
    async with turns_of(model, Coalescing(target=3, window_s=0.01, max_batch=8)) as turns:
        assert await turns.run(due(1.0), 1) == 2
    assert model.batches == [[1]]


async def test_the_most_urgent_go_first_and_no_batch_is_too_large() -> None:
    model = Model()
    model.go.clear()
    async with turns_of(model, Coalescing(max_batch=2)) as turns:
        first = asyncio.ensure_future(turns.run(due(0.0), 0))
        await asyncio.to_thread(model.running.wait, 10)
        rest = [asyncio.ensure_future(turns.run(due(at), int(at))) for at in (5.0, 3.0, 4.0, 1.0)]
        await asyncio.sleep(0)
        model.go.set()
        assert await asyncio.gather(first, *rest) == [0, 10, 6, 8, 2]
    assert model.batches == [[0], [1, 3], [4, 5]]


async def test_an_item_that_fails_fails_alone() -> None:
    async with turns_of(Model(), Coalescing(target=3, window_s=5.0)) as turns:
        results = await asyncio.gather(*(turns.run(due(1.0), item) for item in (1, "bad", 2)), return_exceptions=True)
    assert results[0] == 2
    assert isinstance(results[1], OmnistageError)
    assert results[2] == 4


@pytest.mark.parametrize(("item", "error"), [("crash", ZeroDivisionError), ("short", StageFailed)])
async def test_a_run_that_fails_is_told_to_all_and_the_next_one_works(item: str, error: type[Exception]) -> None:
    async with turns_of(Model(), Coalescing(target=2, window_s=5.0)) as turns:
        results = await asyncio.gather(*(turns.run(due(1.0), one) for one in (1, item)), return_exceptions=True)
        assert [type(result) for result in results] == [error, error]
        assert await asyncio.gather(*(turns.run(due(1.0), one) for one in (1, 2))) == [2, 4]


async def test_a_cancelled_item_never_runs_and_fills_no_batch() -> None:
    model = Model()
    model.go.clear()
    async with turns_of(model, Coalescing(max_batch=8)) as turns:
        first = asyncio.ensure_future(turns.run(due(0.0), 0))
        await asyncio.to_thread(model.running.wait, 10)
        gone, stays = (asyncio.ensure_future(turns.run(due(1.0), item)) for item in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        model.go.set()
        assert [await first, await stays] == [0, 4]
        assert gone.cancelled()
    assert model.batches == [[0], [2]]


async def test_closing_cancels_what_waits_and_lets_what_runs_run_out() -> None:
    model = Model()
    model.go.clear()
    async with turns_of(model, Coalescing(max_batch=1)) as turns:
        running = asyncio.ensure_future(turns.run(due(0.0), 1))
        await asyncio.to_thread(model.running.wait, 10)
        waiting = asyncio.ensure_future(turns.run(due(0.0), 2))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(turns.close())
        await asyncio.sleep(0)
        model.go.set()
        await closing
        assert await running == 2
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            await turns.run(due(0.0), 3)
    assert model.batches == [[1]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]
