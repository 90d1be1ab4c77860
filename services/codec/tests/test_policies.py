"""Growth of steps, chunks that go together, what a new holder skips, reading ahead, 16-bit samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from omnistage.errors import StageFailed
from omnistage_codec.engine.batches import Frames, fits
from omnistage_codec.engine.growth import GrowthPolicy
from omnistage_codec.engine.pcm import to_int16
from omnistage_codec.engine.read_ahead import ReadAhead


def chunk(count: int, *, segment: int = 0, start: int = 0, end: bool = False, text: str = "") -> Frames:
    return Frames(
        frames=np.arange(start, start + count, dtype=np.float32)[:, None],
        segment=segment,
        segment_frame=start,
        segment_end=end,
        text=text,
    )


def test_steps_grow_to_a_limit() -> None:
    policy = GrowthPolicy(first_frames=16, factor=2.0, max_frames=80)
    assert [policy.limit(step) for step in (0, 1, 2, 3, 4, 10_000)] == [16, 32, 64, 80, 80, 80]


def test_chunks_of_one_segment_go_together_up_to_the_limit() -> None:
    first = chunk(8)
    assert fits([], chunk(500), 16)
    assert fits([first], chunk(8, start=8), 16)
    assert not fits([first], chunk(9, start=8), 16)
    assert not fits([first], chunk(1, segment=1), 16)
    assert not fits([chunk(8, end=True)], chunk(1), 16)


def test_int16_clips_and_rounds() -> None:
    samples = np.array([0.0, 1.0, -1.0, 1.7, -9.0, 0.5 / 32767, 1.5 / 32767, -1.5 / 32767, 0.3], np.float32)
    assert to_int16(samples).tolist() == [0, 32767, -32767, 32767, -32767, 0, 2, -2, 9830]
    assert to_int16(samples).dtype == np.int16


async def _count(to: int, read: list[int]) -> AsyncIterator[int]:
    for number in range(to):
        read.append(number)
        yield number


async def test_reads_ahead_up_to_the_limit_in_order() -> None:
    read: list[int] = []
    taken: list[int] = []
    async with ReadAhead(_count(10, read), limit=3) as waiting:
        while await waiting.wait():
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(read) <= len(taken) + 4  # three kept, one in the reader's hand
            taken.append(await waiting.take())
    assert taken == list(range(10))


async def test_an_error_comes_after_the_items_before_it() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise StageFailed("no more")

    taken: list[int] = []

    async def take_all() -> None:
        async with ReadAhead(broken(), limit=3) as waiting:
            while await waiting.wait():
                taken.append(await waiting.take())

    with pytest.raises(StageFailed, match="no more"):
        await take_all()
    assert taken == [1]


async def test_leaving_ends_the_reader() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.set()

    before = asyncio.all_tasks()
    async with ReadAhead(endless(), limit=3) as waiting:
        assert await waiting.wait()
    assert ended.is_set()
    assert asyncio.all_tasks() == before
