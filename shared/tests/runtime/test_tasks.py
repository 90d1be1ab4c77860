"""Tasks are held, ended, and their failures seen."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.runtime.tasks import TaskBag, together


async def test_closing_ends_what_runs_and_takes_no_more() -> None:
    bag = TaskBag("t")
    started = asyncio.Event()

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    task = bag.spawn(forever(), "a")
    await started.wait()
    assert len(bag) == 1
    assert bag.named("a") == [task]
    await bag.close()
    assert task.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        bag.spawn(forever())


async def test_a_failure_goes_to_its_owner_and_leaves_the_others_alone() -> None:
    seen: list[BaseException] = []
    bag = TaskBag("t", on_error=seen.append)

    async def fail() -> None:
        raise ValueError("no")

    other = bag.spawn(asyncio.sleep(0.02))
    bag.spawn(fail())
    assert await bag.wait(5)
    assert [str(error) for error in seen] == ["no"]
    assert not other.cancelled()


async def test_wait_says_when_something_still_runs() -> None:
    bag = TaskBag("t")
    bag.spawn(asyncio.Event().wait())
    assert not await bag.wait(0.01)
    await bag.close()


async def test_together_raises_the_failure_itself() -> None:
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fail() -> None:
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await together(slow(), fail())
    assert cancelled.is_set()
    assert await together(asyncio.sleep(0, 1), asyncio.sleep(0, 2)) == [1, 2]
