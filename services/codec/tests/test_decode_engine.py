"""Many requests at once: each gets the samples it would get alone, in order, and is cancelled cleanly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnistage.errors import StageFailed
from omnistage.pacing import Pacer
from omnistage_codec.engine import AudioPiece, DecodeConfig, DecodeEngine, Frames, GrowthPolicy
from omnistage_codec.models.hibari import HibariWave, layout

Segments = list[NDArray[np.float32]]


@pytest.fixture(name="engine")
async def _engine() -> AsyncIterator[DecodeEngine]:
    engine = DecodeEngine(HibariWave(), DecodeConfig(threads=2, growth=GrowthPolicy(max_frames=80)))
    yield engine
    await engine.close()


@pytest.fixture(name="segments")
def _segments(make_frames: Any) -> Segments:
    return [make_frames(count, seed=count) for count in (40, 1, 3, 90)]


async def arriving(segments: Segments, sizes: int | random.Random = 16, pause: bool = False) -> AsyncIterator[Frames]:
    for segment, frames in enumerate(segments):
        start = 0
        while start < len(frames):
            size = sizes if isinstance(sizes, int) else sizes.choice([1, 2, 7, 30])
            part = frames[start : start + size]
            yield Frames(
                frames=part,
                segment=segment,
                segment_frame=start,
                segment_end=start + len(part) == len(frames),
                text=f"clause {segment}" if start == 0 else "",
            )
            start += len(part)
            if pause:
                await asyncio.sleep(0.001)


def whole(segments: Segments, seed: int) -> NDArray[np.int16]:
    """Decoded at once, without the engine."""
    model = HibariWave()
    state = model.new_state(seed=seed, voice="")
    waves = [
        model.decode(state, frames, segment=number, segment_frame=0, segment_end=True)
        for number, frames in enumerate(segments)
    ]
    pcm: NDArray[np.int16] = np.rint(np.clip(np.concatenate(waves), -1, 1) * np.float32(32767)).astype(np.int16)
    return pcm


async def collect(pieces: AsyncIterator[AudioPiece]) -> list[AudioPiece]:
    return [piece async for piece in pieces]


def joined(pieces: list[AudioPiece]) -> NDArray[np.int16]:
    return np.concatenate([piece.samples for piece in pieces])


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("size", [1, 5, 16, 1000])
async def test_any_chunking_and_timing_gives_the_same_samples(
    engine: DecodeEngine, segments: Segments, size: int, pause: bool
) -> None:
    pieces = await collect(engine.decode(arriving(segments, size, pause), seed=3))
    assert np.array_equal(joined(pieces), whole(segments, 3))
    ends = np.cumsum([len(piece.samples) for piece in pieces])
    assert [piece.offset for piece in pieces] == [0, *ends[:-1]]
    assert {piece.sample_rate_hz for piece in pieces} == {layout.SAMPLE_RATE_HZ}
    assert all(len(piece.samples) and piece.samples.dtype == np.int16 for piece in pieces)


async def test_text_comes_once_with_its_segment(engine: DecodeEngine, segments: Segments) -> None:
    pieces = await collect(engine.decode(arriving(segments, 2), seed=3))
    texts = {piece.segment: piece.text for piece in pieces if piece.text}
    firsts = [next(piece for piece in pieces if piece.segment == number) for number in range(4)]
    assert texts == {number: f"clause {number}" for number in range(4)}
    assert [piece.text for piece in firsts] == [f"clause {number}" for number in range(4)]
    assert sum(bool(piece.text) for piece in pieces) == 4


async def test_waiting_chunks_are_decoded_together(engine: DecodeEngine, make_frames: Any) -> None:
    pieces = await collect(engine.decode(arriving([make_frames(400)], 4), seed=3))
    sizes = [len(piece.samples) // layout.HOP for piece in pieces]
    assert sizes[0] <= 16
    assert max(sizes) == 80
    assert len(sizes) < 12


@pytest.mark.parametrize("skip", [1, 299, 6000, 12_000, 12_001, 12_299, 12_300, 13_199, 13_200, 30_000, 40_199])
async def test_resumes_at_any_sample(engine: DecodeEngine, segments: Segments, skip: int) -> None:
    pieces = await collect(engine.decode(arriving(segments, 7), seed=9, skip_samples=skip))
    assert pieces[0].offset == skip
    assert np.array_equal(joined(pieces), whole(segments, 9)[skip:])
    begun = {number for number, start in enumerate((0, 12_000, 12_300, 13_200)) if start < skip}
    assert {piece.segment for piece in pieces if piece.text} == set(range(4)) - begun


@pytest.mark.parametrize(("segment", "first_offset"), [(1, 12_000), (2, 12_300), (3, 13_200)])
async def test_resumes_at_a_segment(engine: DecodeEngine, segments: Segments, segment: int, first_offset: int) -> None:
    rest = (chunk async for chunk in arriving(segments, 7) if chunk.segment >= segment)
    skip = first_offset + 100
    pieces = await collect(engine.decode(rest, seed=9, first_offset=first_offset, skip_samples=skip))
    assert pieces[0].offset == skip
    assert np.array_equal(joined(pieces), whole(segments, 9)[skip:])


@pytest.mark.parametrize("skip", [40_200, 50_000])
async def test_nothing_is_left_when_all_was_delivered(engine: DecodeEngine, segments: Segments, skip: int) -> None:
    assert await collect(engine.decode(arriving(segments, 7), seed=9, skip_samples=skip)) == []


async def test_eight_at_once_equal_each_alone(engine: DecodeEngine, make_frames: Any) -> None:
    requests = [[make_frames(30 + number, seed=number), make_frames(20, seed=99)] for number in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                collect(engine.decode(arriving(segments, random.Random(number), pause=True), seed=number % 3))
            )
            for number, segments in enumerate(requests)
        ]
    for number, (segments, task) in enumerate(zip(requests, tasks, strict=True)):
        assert np.array_equal(joined(task.result()), whole(segments, number % 3))


async def test_pieces_do_not_share_memory(engine: DecodeEngine, segments: Segments) -> None:
    pieces = await collect(engine.decode(arriving(segments, 9), seed=3))
    expected = joined(pieces).copy()
    assert not any(
        np.shares_memory(one.samples, other.samples)
        for number, one in enumerate(pieces)
        for other in pieces[number + 1 :]
    )
    assert np.array_equal(joined(pieces), expected)


async def test_no_frames_give_no_samples(engine: DecodeEngine) -> None:
    assert await collect(engine.decode(arriving([]), seed=0)) == []


@pytest.mark.parametrize("skip", [0, 100_000])
async def test_input_that_ends_within_a_segment_fails(engine: DecodeEngine, make_frames: Any, skip: int) -> None:
    async def cut_short() -> AsyncIterator[Frames]:
        yield Frames(frames=make_frames(20), segment=0, segment_frame=0, segment_end=False)

    with pytest.raises(StageFailed, match="within segment 0"):
        await collect(engine.decode(cut_short(), seed=0, skip_samples=skip))


async def test_a_gap_fails(engine: DecodeEngine, make_frames: Any) -> None:
    async def with_gap() -> AsyncIterator[Frames]:
        yield Frames(frames=make_frames(20), segment=0, segment_frame=0, segment_end=False)
        yield Frames(frames=make_frames(20), segment=0, segment_frame=21, segment_end=True)

    with pytest.raises(StageFailed, match="frame 21"):
        await collect(engine.decode(with_gap(), seed=0))


async def test_the_inputs_error_is_raised(engine: DecodeEngine, make_frames: Any) -> None:
    async def failing() -> AsyncIterator[Frames]:
        yield Frames(frames=make_frames(20), segment=0, segment_frame=0, segment_end=False)
        raise StageFailed("upstream is gone")

    pieces: list[AudioPiece] = []

    async def keep() -> None:
        async for piece in engine.decode(failing(), seed=0):
            pieces.append(piece)

    with pytest.raises(StageFailed, match="upstream is gone"):
        await keep()
    assert len(joined(pieces)) == 16 * layout.HOP


async def test_the_first_sound_does_not_wait_for_the_end(engine: DecodeEngine, make_frames: Any) -> None:
    async def slow() -> AsyncIterator[Frames]:
        yield Frames(frames=make_frames(16), segment=0, segment_frame=0, segment_end=False)
        await asyncio.Event().wait()

    async with aclosing(engine.decode(slow(), seed=0)) as pieces:
        first = await anext(pieces)
    assert len(first.samples) == 12 * layout.HOP


async def test_closing_and_cancelling_leave_no_task(engine: DecodeEngine, make_frames: Any) -> None:
    closed = 0

    async def endless() -> AsyncGenerator[Frames, None]:
        nonlocal closed
        try:
            for start in range(0, 10**6, 16):
                yield Frames(frames=make_frames(16), segment=0, segment_frame=start, segment_end=False)
                await asyncio.sleep(0)
        finally:
            closed += 1

    async def listen(source: AsyncIterator[Frames]) -> None:
        async with aclosing(engine.decode(source, seed=0)) as pieces:
            async for _ in pieces:
                await asyncio.sleep(0)

    before = asyncio.all_tasks()
    source = endless()
    async with aclosing(source), aclosing(engine.decode(source, seed=0)) as pieces:
        await anext(pieces)
    source = endless()
    async with aclosing(source):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await listen(source)
    assert asyncio.all_tasks() == before
    assert closed == 2


async def test_warm_and_facts(engine: DecodeEngine) -> None:
    await engine.warm()
    facts = engine.facts()
    assert (facts.layout, facts.frame_width, facts.samples_per_frame) == ("hibari-v1", 3006, 300)
    assert facts.sample_rate_hz == facts.frame_rate_hz * facts.samples_per_frame
    assert engine.slots == 16


async def test_a_pace_delays_all_but_the_first_samples_and_changes_none(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("omnistage_codec.engine.engine.Pacer", partial(Pacer, clock=lambda: sum(waits), sleep=sleep))
    paced = DecodeEngine(HibariWave(), DecodeConfig(pace=1.5))
    try:
        pieces = await collect(paced.decode(arriving(segments), seed=3))
    finally:
        await paced.close()
    assert np.array_equal(joined(pieces), whole(segments, 3))
    assert len(pieces) > 2
    assert waits == pytest.approx([len(piece.samples) / (1.5 * piece.sample_rate_hz) for piece in pieces[:-1]])
