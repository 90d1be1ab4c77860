"""The decoding engine with a family that decodes several requests in one pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import numpy as np
import pytest
from numpy.typing import NDArray
from services.codec.tests.codes import Codes, decode_whole, make_codes

from omnistage.errors import OmnistageError, StageFailed
from omnistage_codec.engine import AudioPiece, BufferedGrowth, Coalescing, DecodeConfig, DecodeEngine, Frames
from omnistage_codec.models.base import Samples, Step
from omnistage_codec.models.qwen3_tts import Qwen3TTSWave, StreamState

FRAME = 1920
ONE_BIT = 1
"""Rounding may move a sample of 16 bits by one step where float32 is off in its last digits."""

CONFIG = DecodeConfig(
    slots=32,
    growth=BufferedGrowth(frame_rate_hz=12.5),
    coalescing=Coalescing(target=4, window_s=0.002, max_batch=16),
)


class Watched(Qwen3TTSWave):
    """Notes how many frames each step had, and how many of them nobody needed."""

    def __init__(self, wave: Qwen3TTSWave) -> None:
        self.__dict__.update(wave.__dict__)
        self.passes: list[list[int]] = []
        self.silent: list[list[int]] = []

    def decode_batch(self, steps: Sequence[Step[StreamState]]) -> list[Samples | OmnistageError]:
        self.passes.append([len(step.frames) for step in steps])
        self.silent.append([min(step.silent, len(step.frames)) for step in steps])
        return super().decode_batch(steps)


@pytest.fixture(name="watched")
def _watched(wave: Qwen3TTSWave) -> Watched:
    return Watched(wave)


@pytest.fixture(name="engine")
async def _engine(watched: Watched) -> AsyncIterator[DecodeEngine]:
    engine = DecodeEngine(watched, CONFIG)
    yield engine
    await engine.close()


async def arriving(codes: Codes, sizes: Sequence[int], *, pause: random.Random | None = None) -> AsyncIterator[Frames]:
    """Chunks of these sizes; the last size goes on."""
    start, index = 0, 0
    while start < len(codes):
        size = sizes[min(index, len(sizes) - 1)]
        end = start + size >= len(codes)
        yield Frames(
            frames=codes[start : start + size],
            segment=0,
            segment_frame=start,
            segment_end=end,
            text="hello" if start == 0 else "",
        )
        start, index = start + size, index + 1
        if pause is not None:
            await asyncio.sleep(pause.random() * 0.004)


def pcm(samples: Samples) -> NDArray[np.int16]:
    return np.rint(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def check(pieces: list[AudioPiece], expected: NDArray[np.int16], *, first: int = 0) -> None:
    """Without gaps from a sample on, and every sample right."""
    place = first
    for piece in pieces:
        assert piece.offset == place
        assert len(piece.samples) > 0
        place += len(piece.samples)
    assert place == len(expected)
    samples = np.concatenate([piece.samples for piece in pieces])
    assert np.abs(samples.astype(np.int32) - expected[first:]).max() <= ONE_BIT


@pytest.mark.parametrize("sizes", [(1,), (4,), (25,), (1, 2, 4, 8, 16), (300,)], ids=str)
async def test_any_chunks_give_every_sample_once(engine: DecodeEngine, wave: Qwen3TTSWave, sizes: list[int]) -> None:
    codes = make_codes(60)
    pieces = [piece async for piece in engine.decode(arriving(codes, sizes), seed=0)]
    assert sum(len(piece.samples) for piece in pieces) == 60 * FRAME
    check(pieces, pcm(decode_whole(wave, codes)))
    assert [piece.text for piece in pieces] == ["hello"] + [""] * (len(pieces) - 1)


async def test_the_first_samples_are_of_one_frame_even_of_a_large_chunk(engine: DecodeEngine, watched: Watched) -> None:
    async with aclosing(engine.decode(arriving(make_codes(60), [60]), seed=0)) as pieces:
        lengths = [len(piece.samples) // FRAME async for piece in pieces]
    assert lengths == [1, 2, 4, 8, 16, 25, 4]
    assert watched.passes == [[length] for length in lengths]


async def test_the_client_may_say_how_many_frames_come_first(engine: DecodeEngine) -> None:
    pieces = engine.decode(arriving(make_codes(30), [1]), seed=0, first_frames=10)
    assert len((await anext(pieces)).samples) == 10 * FRAME
    await pieces.aclose()


async def test_a_short_answer_ends_before_the_frames_that_were_asked_for(engine: DecodeEngine) -> None:
    pieces = [piece async for piece in engine.decode(arriving(make_codes(3), [1]), seed=0, first_frames=10)]
    assert [len(piece.samples) for piece in pieces] == [3 * FRAME]


async def test_an_answer_that_leaves_whole_is_made_in_large_steps(engine: DecodeEngine, watched: Watched) -> None:
    pieces = [piece async for piece in engine.decode(arriving(make_codes(60), [1]), seed=0, reading="whole")]
    assert watched.passes == [[25], [25], [10]]
    assert len(pieces) == 3


async def test_no_frames_make_no_samples(engine: DecodeEngine) -> None:
    async def nothing() -> AsyncIterator[Frames]:
        yield Frames(frames=make_codes(0), segment=0, segment_frame=0, segment_end=True)

    assert [piece async for piece in engine.decode(nothing(), seed=0)] == []


async def test_an_input_that_breaks_off_is_an_error(engine: DecodeEngine) -> None:
    async def broken() -> AsyncIterator[Frames]:
        yield Frames(frames=make_codes(2), segment=0, segment_frame=0, segment_end=False)

    with pytest.raises(StageFailed, match="within segment 0"):
        _ = [piece async for piece in engine.decode(broken(), seed=0)]


@pytest.mark.parametrize("context_frames", [1, 80])
async def test_a_context_is_not_heard(engine: DecodeEngine, wave: Qwen3TTSWave, context_frames: int) -> None:
    context, codes = make_codes(context_frames, 1), make_codes(20, 2)
    pieces = [piece async for piece in engine.decode(arriving(codes, [3]), seed=0, context=context)]
    check(pieces, pcm(decode_whole(wave, codes, context)))


async def test_the_decoder_is_warmed_before_frames_come(engine: DecodeEngine, watched: Watched) -> None:
    go = asyncio.Event()

    async def late() -> AsyncIterator[Frames]:
        await go.wait()
        yield Frames(frames=make_codes(1), segment=0, segment_frame=0, segment_end=True)

    answer = asyncio.ensure_future(anext(engine.decode(late(), seed=0, context=make_codes(9))))
    while not watched.passes:
        await asyncio.sleep(0.001)
    assert watched.passes == [[0]]
    go.set()
    assert len((await answer).samples) == FRAME


@pytest.mark.parametrize("delivered", [1, FRAME, 7 * FRAME + 5, 39 * FRAME, 40 * FRAME])
async def test_whoever_takes_over_goes_on_with_the_next_sample(
    engine: DecodeEngine, wave: Qwen3TTSWave, delivered: int
) -> None:
    codes, context = make_codes(40), make_codes(12, 1)
    pieces = [
        piece
        async for piece in engine.decode(
            arriving(codes, [1]), seed=0, context=context, first_offset=0, skip_samples=delivered
        )
    ]
    expected = pcm(decode_whole(wave, codes, context))
    if delivered < len(expected):
        check(pieces, expected, first=delivered)
        assert pieces[0].text == ""
    else:
        assert pieces == []


async def test_catching_up_is_one_step_that_makes_no_samples(engine: DecodeEngine, watched: Watched) -> None:
    pieces = engine.decode(arriving(make_codes(300), [300]), seed=0, skip_samples=290 * FRAME)
    assert [len(piece.samples) // FRAME async for piece in pieces] == [10]
    assert watched.passes == [[256], [44]]
    assert watched.silent == [[256], [34]]


async def test_32_staggered_requests_some_of_which_leave(
    engine: DecodeEngine, watched: Watched, wave: Qwen3TTSWave
) -> None:
    chance = random.Random(4)
    lengths = [chance.randint(1, 50) for _ in range(32)]

    async def one(number: int) -> None:
        rng = random.Random(number)
        await asyncio.sleep(rng.random() * 0.1)
        codes = make_codes(lengths[number], number)
        context = make_codes(5, number + 100) if number % 3 == 0 else None
        leaves_after = 2 if number % 4 == 1 else None
        chunks = arriving(codes, [rng.choice([1, 2, 5])], pause=rng)
        pieces: list[AudioPiece] = []
        async with aclosing(engine.decode(chunks, seed=0, context=context)) as answer:
            async for piece in answer:
                pieces.append(piece)
                if leaves_after is not None and len(pieces) == leaves_after:
                    break
        expected = pcm(decode_whole(wave, codes, context))
        if leaves_after is not None:
            expected = expected[: sum(len(piece.samples) for piece in pieces)]
        check(pieces, expected)

    async with asyncio.TaskGroup() as group:
        for number in range(32):
            group.create_task(one(number))
    assert max(len(rows) for rows in watched.passes) > 1
    assert engine.stalled_s == 0.0


async def test_a_request_with_wrong_codes_fails_alone(engine: DecodeEngine, wave: Qwen3TTSWave) -> None:
    good, bad = make_codes(10), make_codes(10)
    bad[6, 2] = 5000

    async def collect(codes: Codes) -> list[AudioPiece]:
        return [piece async for piece in engine.decode(arriving(codes, [1]), seed=0)]

    results = await asyncio.gather(*(collect(codes) for codes in (good, bad, good, good)), return_exceptions=True)
    assert isinstance(results[1], StageFailed)
    for index in (0, 2, 3):
        pieces = results[index]
        assert not isinstance(pieces, BaseException)
        check(pieces, pcm(decode_whole(wave, good)))


async def test_warming_leaves_nothing_behind(engine: DecodeEngine, watched: Watched) -> None:
    await engine.warm()
    assert watched.passes == [[2]]
