"""The bounded buffer between a request's readers and its router."""

from __future__ import annotations

import asyncio

import pytest

from omnistage_gateway.dispatch.handover import Handover


async def drained(handover: Handover[int]) -> list[int]:
    items = []
    while (item := await handover.get()) is not None:
        items.append(item)
    return items


async def test_several_writers_never_exceed_the_limit_and_lose_nothing() -> None:
    handover: Handover[int] = Handover(3)
    most = 0

    async def write(start: int) -> None:
        nonlocal most
        for number in range(start, start + 50):
            await handover.put(number)
            most = max(most, len(handover))

    async def write_all() -> None:
        async with asyncio.TaskGroup() as writers:
            for start in (0, 100, 200):
                writers.create_task(write(start))
        handover.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(write_all())
        got = await drained(handover)
    assert most == 3
    assert sorted(got) == [*range(50), *range(100, 150), *range(200, 250)]
    assert [n for n in got if n < 100] == list(range(50)), "each writer's order is kept"


async def test_an_error_comes_after_what_was_there_unless_at_once() -> None:
    for at_once in (False, True):
        handover: Handover[int] = Handover(3)
        await handover.put(1)
        handover.close(ValueError("x"), at_once=at_once)
        if not at_once:
            assert await handover.get() == 1
        for _ in range(2):
            with pytest.raises(ValueError, match="x"):
                await handover.get()


async def test_closing_frees_writers_and_readers_that_wait_and_the_first_close_counts() -> None:
    handover: Handover[int] = Handover(1)
    await handover.put(1)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(handover.put(2))
        await asyncio.sleep(0)
        assert not writer.done()
        handover.close()
        handover.close(ValueError("late"))
    assert await drained(handover) == [1], "what came after the end is dropped"
    empty: Handover[int] = Handover(1)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(empty.get())
        await asyncio.sleep(0)
        empty.close()
    assert reader.result() is None


async def test_a_cancelled_reader_takes_nothing() -> None:
    handover: Handover[int] = Handover(2)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(handover.get())
        await asyncio.sleep(0)
        await handover.put(7)
        reader.cancel()
    assert await handover.get() == 7
