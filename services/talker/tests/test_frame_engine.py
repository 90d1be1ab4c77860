"""The engine over a tiny talker: order of arrival, batches, preemption and failures change nothing of the frames."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnistage.contracts import SpeechOptions, SpeechSampling
from omnistage.errors import InputStarved, InvalidRequest, StageFailed, Unavailable
from omnistage_talker.engine.engine import SpokenFrames
from omnistage_talker.engine.frame_run import HOLD_S, RUNAWAY
from omnistage_talker.engine.frames import FrameConfig, FrameEngine
from omnistage_talker.engine.groups import GroupSizes
from omnistage_talker.engine.guard import RunawayLimits
from omnistage_talker.models.base import Reference
from omnistage_talker.models.qwen3_tts.model import Qwen3TTS

TEXT = "One two three, and more of it than that."
OPTIONS = SpeechOptions(voice="ryan", language="en", seed=5, max_frames=20, non_streaming_mode=False)
GREEDY = SpeechSampling(temperature=0.0, residual_temperature=0.0)
CONFIG = FrameConfig(slots=8, kv_tokens=2048, guard=None)

Codes = NDArray[np.int32]


async def given(text: str) -> AsyncIterator[str]:
    yield text


async def slowly(pieces: list[str], rng: random.Random) -> AsyncIterator[str]:
    for piece in pieces:
        await asyncio.sleep(rng.choice((0, 0, 0.002, 0.01)))
        yield piece


def cut(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(text)), rng.randint(0, min(12, len(text) - 1))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


async def chunks_of(engine: FrameEngine, pieces: AsyncIterator[str], options: Any, **more: Any) -> list[SpokenFrames]:
    async with aclosing(engine.speak(pieces, options, **more)) as chunks:
        return [chunk async for chunk in chunks]


async def frames_of(engine: FrameEngine, pieces: AsyncIterator[str], options: Any = OPTIONS, **more: Any) -> Codes:
    return np.concatenate([chunk.frames for chunk in await chunks_of(engine, pieces, options, **more)])


@pytest.fixture(scope="module", name="models")
def _models(made: dict[str, Path]) -> dict[str, Qwen3TTS]:
    return {kind: Qwen3TTS(folder, context=512) for kind, folder in made.items()}


@pytest.fixture(name="make_engine")
async def _make_engine(models: dict[str, Qwen3TTS]) -> AsyncIterator[Callable[..., FrameEngine]]:
    engines: list[FrameEngine] = []

    def make(kind: str = "custom_voice", **change: Any) -> FrameEngine:
        engines.append(FrameEngine(models[kind], replace(CONFIG, **change)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


async def test_chunks_follow_one_another_and_the_last_says_why(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine(groups=GroupSizes(first_frames=1, factor=2.0, max_frames=4))
    chunks = await chunks_of(engine, given(TEXT), OPTIONS)
    assert [len(chunk.frames) for chunk in chunks] == [1, 2, 4, 4, 4, 4, 1]
    assert [chunk.segment_frame for chunk in chunks] == [0, 1, 3, 7, 11, 15, 19]
    assert [chunk.segment_end for chunk in chunks] == [False] * 6 + [True]
    assert [chunk.finish_reason for chunk in chunks] == [None] * 6 + ["length"]
    for chunk in chunks:
        assert chunk.frames.dtype == np.int32
        assert chunk.frames.shape[1] == 16
        assert chunk.frames.flags.c_contiguous
        assert 0 <= chunk.frames.min() <= chunk.frames.max() < 2048


async def test_the_end_token_ends_it(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine("ending")
    reasons = set()
    for seed in range(8):
        chunks = await chunks_of(engine, given(TEXT), replace_options(OPTIONS, seed=seed))
        count = sum(len(chunk.frames) for chunk in chunks)
        assert chunks[-1].finish_reason == ("length" if count == 20 else "stop")
        assert count >= 2
        reasons.add(chunks[-1].finish_reason)
    assert reasons == {"stop", "length"}


def replace_options(options: SpeechOptions, **change: Any) -> SpeechOptions:
    return SpeechOptions(**({name: getattr(options, name) for name in options.__struct_fields__} | change))


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design", "base"])
async def test_every_task_speaks_and_warms_up(make_engine: Callable[..., FrameEngine], kind: str) -> None:
    engine = make_engine(kind)
    await engine.warm()
    reference = None
    options = replace_options(OPTIONS, voice="default", instructions="Old." if kind == "voice_design" else None)
    if kind == "custom_voice":
        options = OPTIONS
    if kind == "base":
        rng = np.random.default_rng(0)
        embedding = rng.standard_normal(16).astype(np.float32)
        codes = rng.integers(0, 2048, (30, 16)).astype(np.int32)
        reference = Reference(embedding=embedding, codes=codes, text="What it says.")
        timbre = await frames_of(engine, given(TEXT), options, reference=Reference(embedding=embedding))
        recorded = await frames_of(engine, given(TEXT), options, reference=reference)
        assert not np.array_equal(timbre, recorded)
    assert (await frames_of(engine, given(TEXT), options, reference=reference)).shape == (20, 16)


@pytest.mark.parametrize("whole_text_first", [False, True])
async def test_frames_do_not_depend_on_how_the_text_arrives(
    make_engine: Callable[..., FrameEngine], whole_text_first: bool
) -> None:
    engine = make_engine()
    options = replace_options(OPTIONS, non_streaming_mode=whole_text_first)
    whole = await frames_of(engine, given(TEXT), options)
    for seed in range(12):
        rng = random.Random(seed)
        arrived = await frames_of(engine, slowly(cut(TEXT, rng), rng), options)
        assert np.array_equal(arrived, whole)


async def test_seeds_and_options_change_the_frames(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    base = await frames_of(engine, given(TEXT))
    for change in (
        {"seed": 6},
        {"voice": "sohee"},
        {"language": "de"},
        {"instructions": "Whisper."},
        {"non_streaming_mode": True},
        {"sampling": GREEDY},
        {"sampling": SpeechSampling(residual_temperature=0.1)},
    ):
        other = await frames_of(engine, given(TEXT), replace_options(OPTIONS, **change))
        assert not np.array_equal(other, base), change
    assert np.array_equal(await frames_of(engine, given(TEXT)), base)


async def test_speech_that_waits_for_text_holds_nobody_up(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    alone = await frames_of(engine, given(TEXT))
    go_on = asyncio.Event()

    async def late() -> AsyncIterator[str]:
        yield TEXT[:9]
        await go_on.wait()
        yield TEXT[9:]

    async with aclosing(engine.speak(late(), OPTIONS)) as parked:
        first = await anext(parked)
        for _ in range(3):
            assert np.array_equal(await frames_of(engine, given(TEXT)), alone)
        assert engine.counts()["running"] == 1
        go_on.set()
        rest = [chunk.frames async for chunk in parked]
    assert np.array_equal(np.concatenate([first.frames, *rest]), alone)


async def _request(engine: FrameEngine, index: int, *, may_leave: bool) -> Codes | None:
    """One of many different requests; some leave before their end."""
    rng = random.Random(index)
    text = " ".join(rng.choice(TEXT.split()) for _ in range(rng.randint(1, 25)))
    options = replace_options(
        OPTIONS,
        voice=rng.choice(("ryan", "sohee", "dylan")),
        seed=index,
        max_frames=rng.randint(3, 40),
        instructions=rng.choice((None, "Whisper it, please.")),
        non_streaming_mode=rng.random() < 0.5,
        sampling=rng.choice((None, GREEDY, SpeechSampling(top_k=5, top_p=0.9), SpeechSampling(repetition_penalty=1.5))),
    )
    leaves_after = rng.randint(0, 10) if may_leave and rng.random() < 0.25 else None
    frames: list[Codes] = []
    await asyncio.sleep(rng.random() * 0.3 if may_leave else 0)
    async with aclosing(engine.speak(slowly(cut(text, rng), rng), options)) as chunks:
        async for chunk in chunks:
            frames.append(chunk.frames)
            if leaves_after is not None and len(frames) > leaves_after:
                return None
    return np.concatenate(frames)


async def test_many_at_once_each_get_what_they_get_alone(make_engine: Callable[..., FrameEngine]) -> None:
    crowded = make_engine(slots=16, kv_tokens=256, prefill_tokens=64, chunk_tokens=16)
    together = await asyncio.gather(*(_request(crowded, index, may_leave=True) for index in range(32)))
    counts = crowded.counts()
    assert counts["preemptions"] > 0
    assert counts["batch_max"] > 4
    alone = make_engine(slots=1, kv_tokens=1024, prefill_tokens=512)
    left = 0
    for index, found in enumerate(together):
        if found is None:
            left += 1
            continue
        expected = await _request(alone, index, may_leave=False)
        assert expected is not None
        assert np.array_equal(found, expected), index
    assert 0 < left < 16
    async with asyncio.timeout(10):
        while crowded.counts()["kv_use"] > 0:
            await asyncio.sleep(0.01)


async def test_a_new_holder_goes_on_where_frames_were_sent(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    chunks = await chunks_of(engine, given(TEXT), OPTIONS)
    frames = np.concatenate([chunk.frames for chunk in chunks])
    for index in range(1, len(chunks)):
        start = chunks[index].segment_frame
        for earlier in (frames[:start], None):
            rest = await chunks_of(engine, given(TEXT), OPTIONS, first_frame=start, earlier=earlier)
            assert [chunk.segment_frame for chunk in rest] == [chunk.segment_frame for chunk in chunks[index:]]
            assert np.array_equal(np.concatenate([chunk.frames for chunk in rest]), frames[start:])
            assert rest[-1].finish_reason == "length"
    assert await chunks_of(engine, given(TEXT), OPTIONS, first_segment=1) == []


async def test_leaving_frees_everything(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    for _ in range(3):
        async with aclosing(engine.speak(given(TEXT), replace_options(OPTIONS, max_frames=400))) as chunks:
            await anext(chunks)
    async with asyncio.timeout(10):
        while engine.counts()["running"] or engine.counts()["waiting"]:
            await asyncio.sleep(0.01)
    assert engine.counts()["kv_use"] == 0


async def test_a_source_of_text_that_fails_fails_the_speech(make_engine: Callable[..., FrameEngine]) -> None:
    async def starved(first: str) -> AsyncIterator[str]:
        if first:
            yield first
        await asyncio.sleep(0.02)
        raise InputStarved("no text came")

    for first in ("", TEXT[:12]):
        with pytest.raises(InputStarved):
            await chunks_of(make_engine(), starved(first), OPTIONS)


@pytest.mark.parametrize("text", ["", "   ", " \n\t "])
async def test_nothing_to_say(make_engine: Callable[..., FrameEngine], text: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest) as caught:
        await chunks_of(engine, given(text), OPTIONS)
    assert caught.value.param == "input"
    assert await chunks_of(engine, given(text), OPTIONS, lenient=True) == []


async def test_white_space_around_a_text_is_not_spoken(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    assert np.array_equal(await frames_of(engine, given(f"\n {TEXT} \n")), await frames_of(engine, given(TEXT)))


async def test_markdown_of_a_model_is_not_spoken(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine()
    written = await frames_of(engine, given("# One **two**\n\n- three.\n"), lenient=True)
    assert np.array_equal(written, await frames_of(engine, given("One two three.")))


async def test_a_text_beyond_the_context_is_refused(make_engine: Callable[..., FrameEngine]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await chunks_of(make_engine(), given("word " * 600), replace_options(OPTIONS, non_streaming_mode=True))
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


async def test_the_context_ends_it_as_a_length(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine(kv_tokens=64)
    chunks = await chunks_of(engine, given("Hi."), replace_options(OPTIONS, max_frames=None))
    assert chunks[-1].finish_reason == "length"
    assert sum(len(chunk.frames) for chunk in chunks) == 64 - 10


TIGHT = RunawayLimits(frames_per_token=0.5, extra_frames=5)


async def test_runaway_speech_ends_with_an_error_of_its_own(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine(guard=TIGHT)
    heard: list[SpokenFrames] = []

    async def hear() -> None:
        async with aclosing(engine.speak(given(TEXT), replace_options(OPTIONS, max_frames=200))) as chunks:
            async for chunk in chunks:
                heard.append(chunk)

    with pytest.raises(StageFailed) as caught:
        await hear()
    assert caught.value.code == RUNAWAY
    assert heard
    async with asyncio.timeout(10):
        while engine.counts()["running"]:
            await asyncio.sleep(0.01)


async def _outcome(engine: FrameEngine, options: SpeechOptions, **more: Any) -> Codes | None:
    """The frames, or None where the speech ran away."""
    try:
        return await frames_of(engine, given("Hi."), options, **more)
    except StageFailed as error:
        if error.code != RUNAWAY:
            raise
        return None


async def test_runaway_speech_that_nobody_heard_is_tried_once_more(make_engine: Callable[..., FrameEngine]) -> None:
    engine = make_engine("ending", guard=RunawayLimits(frames_per_token=1e-9, extra_frames=12))
    first = second = 0
    for seed in range(12):
        fixed = replace_options(OPTIONS, seed=seed, max_frames=60)
        drawn = replace_options(fixed, seed_drawn=True)
        expected = await _outcome(engine, fixed, reading="whole")
        found = await _outcome(engine, drawn, reading="whole")
        if expected is not None:
            assert found is not None
            assert np.array_equal(found, expected)
            first += 1
        elif found is not None:
            half = await chunks_of(engine, given("Hi."), drawn, reading="whole")
            start = half[1].segment_frame
            for earlier in (found[:start], None):
                rest = await _outcome(engine, drawn, reading="whole", first_frame=start, earlier=earlier)
                assert rest is not None
                assert np.array_equal(rest, found[start:])
            assert await _outcome(engine, drawn, reading="stream") is None
            second += 1
    assert first
    assert second


async def test_frames_are_held_back_for_a_while_only(
    models: dict[str, Qwen3TTS], make_engine: Callable[..., FrameEngine]
) -> None:
    """After that they leave, and speech that runs away then fails: part of it may have been heard."""
    now = 0.0
    limits = RunawayLimits(frames_per_token=1e-9, extra_frames=18)
    engine = FrameEngine(models["custom_voice"], replace(CONFIG, guard=limits), clock=lambda: now)
    options = replace_options(OPTIONS, max_frames=40, seed_drawn=True)
    sent: list[SpokenFrames] = []

    async def hear() -> None:
        nonlocal now
        async with aclosing(engine.speak(slowly([TEXT], random.Random(0)), options, reading="whole")) as chunks:
            now = HOLD_S + 1
            async for chunk in chunks:
                sent.append(chunk)

    async def advance() -> None:
        nonlocal now
        while not sent:
            now += HOLD_S
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        group.create_task(advance())
        with pytest.raises(StageFailed) as caught:
            await hear()
    await engine.close()
    assert caught.value.code == RUNAWAY
    expected = await frames_of(make_engine(), given(TEXT), replace_options(OPTIONS, max_frames=18))
    frames = np.concatenate([chunk.frames for chunk in sent])
    assert np.array_equal(frames, expected[: len(frames)])
    assert sent[0].segment_frame == 0


async def test_a_closed_engine_refuses(models: dict[str, Qwen3TTS]) -> None:
    engine = FrameEngine(models["custom_voice"], CONFIG)
    await engine.close()
    with pytest.raises(Unavailable):
        await chunks_of(engine, given(TEXT), OPTIONS)
