"""Growth from the client's buffer, cutting and waiting for chunks: pure policy, by tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnistage_codec.engine.batches import Frames, continues, enough, joined, split
from omnistage_codec.engine.growth import BufferedGrowth, GrowthPolicy, Progress, Wish
from omnistage_codec.engine.read_ahead import ReadAhead

POLICY = BufferedGrowth(frame_rate_hz=12.5, first_frames=1, factor=2.0, max_frames=25, spend=0.5, margin_s=0.1)


def wish(**progress: Any) -> Wish:
    return POLICY.wish(Progress(**{"steps": 1, "last_frames": 1, "buffered_s": 0.0} | progress))


@pytest.mark.parametrize(
    ("progress", "wanted", "patience_s", "limit"),
    [
        ({"steps": 0}, 1, None, 1),
        ({"steps": 0, "first_frames": 10}, 10, None, 10),
        ({"steps": 0, "first_frames": 99}, 25, None, 25),
        ({"buffered_s": 0.0}, 1, 0.0, 2),
        ({"buffered_s": 0.1}, 1, 0.0, 2),
        ({"buffered_s": 0.5}, 2, 0.2, 2),
        ({"buffered_s": 0.5, "last_frames": 4}, 2, 0.2, 8),
        ({"buffered_s": 1.1, "last_frames": 4}, 6, 0.5, 8),
        ({"buffered_s": 9.1, "last_frames": 4}, 8, 4.5, 8),
        ({"buffered_s": 9.1, "last_frames": 20}, 25, 4.5, 25),
        ({"buffered_s": 0.0, "last_frames": 20}, 1, 0.0, 25),
        ({"steps": 0, "catching_up": True}, 1, 0.0, 256),
        ({"steps": 9, "catching_up": True, "buffered_s": 5.0}, 1, 0.0, 256),
        ({"steps": 0, "reading": "whole"}, 25, None, 25),
        ({"steps": 3, "reading": "batch"}, 25, None, 25),
    ],
)
def test_steps_follow_the_buffer(progress: dict[str, Any], wanted: int, patience_s: float | None, limit: int) -> None:
    found = wish(**progress)
    assert (found.wanted, found.limit, found.split) == (wanted, limit, True)
    assert found.patience_s == (patience_s if patience_s is None else pytest.approx(patience_s))


def test_what_waits_beside_a_fast_talker_doubles_to_the_limit() -> None:
    limits, last = [], 0
    for step in range(7):
        last = wish(steps=step, last_frames=last, buffered_s=60.0).limit
        limits.append(last)
    assert limits == [1, 2, 4, 8, 16, 25, 25]


def test_families_with_small_frames_take_whole_chunks_and_wait_for_none() -> None:
    found = GrowthPolicy(first_frames=16, max_frames=80).wish(Progress(steps=2, last_frames=32, buffered_s=9.0))
    assert found == Wish(wanted=1, patience_s=0.0, limit=64, split=False)


def chunk(count: int, *, start: int = 0, segment: int = 0, end: bool = False, text: str = "") -> Frames:
    frames = np.arange(start, start + count, dtype=np.int32)[:, None]
    return Frames(frames=frames, segment=segment, segment_frame=start, segment_end=end, text=text)


def test_a_chunk_is_split_and_joined_without_loss() -> None:
    head, rest = split(chunk(7, start=3, end=True, text="hello"), 2)
    assert (head.frames[:, 0].tolist(), head.segment_frame, head.segment_end, head.text) == ([3, 4], 3, False, "hello")
    assert (rest.frames[:, 0].tolist(), rest.segment_frame, rest.segment_end, rest.text) == (
        [5, 6, 7, 8, 9],
        5,
        True,
        "",
    )
    whole = joined([head, rest])
    assert (whole.frames[:, 0].tolist(), whole.segment_frame, whole.segment_end) == (list(range(3, 10)), 3, True)
    assert joined([head]) is head


def test_chunks_go_on_within_a_segment_only() -> None:
    assert continues([], chunk(1, segment=4))
    assert continues([chunk(1)], chunk(1, start=1))
    assert not continues([chunk(1)], chunk(1, segment=1))
    assert not continues([chunk(1, end=True)], chunk(1, start=1))


@pytest.mark.parametrize(
    ("waiting", "wanted", "answer"),
    [
        ([], 1, False),
        ([chunk(1)], 1, True),
        ([chunk(1), chunk(1, start=1)], 3, False),
        ([chunk(1), chunk(2, start=1)], 3, True),
        ([chunk(1), chunk(1, start=1, end=True)], 9, True),
        ([chunk(0, end=True)], 9, True),
    ],
)
def test_enough_is_so_many_frames_or_a_segments_end(waiting: list[Frames], wanted: int, answer: bool) -> None:
    assert enough(waiting, wanted) is answer


async def numbers(count: int, go: asyncio.Event) -> AsyncIterator[int]:
    yield 0
    await go.wait()
    for number in range(1, count):
        yield number


async def test_gathering_ends_with_enough_or_the_source_or_room() -> None:
    go = asyncio.Event()
    go.set()
    async with ReadAhead(numbers(10, go), limit=6) as waiting:
        await waiting.gather(lambda items: len(items) >= 3, None)
        taken = [await waiting.take() for _ in range(3)]
        waiting.put_back(taken.pop())
        assert waiting.peek() == 2
        await waiting.gather(lambda items: len(items) >= 100, None)  # no more fits
        taken += [await waiting.take() for _ in range(6)]
        await waiting.gather(lambda items: len(items) >= 100, None)  # no more comes
        taken += [await waiting.take() for _ in range(2)]
        assert not await waiting.wait()
    assert taken == list(range(10))


async def test_gathering_ends_with_patience() -> None:
    async with ReadAhead(numbers(2, asyncio.Event()), limit=6) as waiting:
        assert await waiting.wait()
        await waiting.gather(lambda items: len(items) >= 2, 0.0)
        await waiting.gather(lambda items: len(items) >= 2, 0.02)
        assert await waiting.take() == 0
        assert waiting.peek() is None
