"""The codec of token frames behind its messages: streaming, context, hand-over; recordings to codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from numpy.typing import NDArray
from tests.support.checkpoints import tiny_codec
from tests.support.stages import PATIENCE_S, Answer, Engines, answer, stage

from omnistage.config import EngineSpec, ModelsFile
from omnistage.contracts import (
    AudioDelta,
    AudioDone,
    DecodeFrames,
    EncodedReference,
    EncodeReference,
    End,
    Failed,
    FrameChunk,
    Payload,
    SpeakText,
    SpeechOptions,
    VoiceReference,
    decode_record,
    encode,
)
from omnistage.observability import Metrics
from omnistage.runtime.context import RequestContext
from omnistage.runtime.engines import Loaded
from omnistage.runtime.meta import Meta
from omnistage.runtime.service import Service
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import TensorPlane, memory_plane
from omnistage.transport import Bus
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology
from omnistage_codec.bootstrap import service as codec_service
from omnistage_codec.models import LoadedModels, ModelOptions, load_models

pytestmark = pytest.mark.timeout(300)

FRAME = 1920
CODES = np.random.default_rng(3).integers(0, 2048, (60, 16)).astype(np.int32)
CONTEXT = np.random.default_rng(4).integers(0, 2048, (30, 16)).astype(np.int32)


class Player:
    """Stands for a talker: it knows the frames and sends them one by one, slowly enough to be interrupted."""

    async def warm(self) -> None: ...

    async def close(self) -> None: ...


async def _play(context: RequestContext[Player], work: SpeakText) -> None:
    edge = context.output("codec")
    reference = work.speech.reference
    warm = None if reference is None else reference.codes
    await context.start(DecodeFrames(**context.onward("codec"), context=warm))
    sent = sum(record.frames for record in edge.earlier if isinstance(record, FrameChunk))
    for frame in range(sent, len(CODES)):
        await edge.send(
            FrameChunk,
            payload=await context.pack(CODES[frame : frame + 1], "codec"),
            frames=1,
            segment_frame=frame,
            segment_end=frame == len(CODES) - 1,
            finish_reason="length" if frame == len(CODES) - 1 and work.speech.max_frames else None,
        )
        await asyncio.sleep(0.005)
    await edge.finish()


async def _load_player(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
    return Loaded(Player())


PLAYER = Service(name="talker", version="0", handlers={SpeakText: _play}, load=_load_player)


@pytest.fixture(scope="module", name="checkpoint")
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_codec(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module", name="models")
def _models(checkpoint: Path) -> LoadedModels:
    """The same models without any service around them."""
    return load_models("qwen3_tts", ModelOptions(checkpoint=checkpoint, batch_invariant=True))


@pytest.fixture(scope="module", name="engines")
def _engines(checkpoint: Path) -> Iterator[Engines]:
    codec = {"service": "codec", "engine": "qwen3_tts", "checkpoint": str(checkpoint), "slots": 4}
    models = ModelsFile.model_validate(
        {
            "version": 1,
            "engines": {
                "player": {"service": "talker", "engine": "player"},
                "tokens": {**codec, "settings": {"batch_invariant": True}},
                "mute": {**codec, "settings": {"references": False}},
            },
            "models": {},
        }
    )
    engines = Engines(models)
    yield engines
    asyncio.run(engines.close())


class World:
    """The player and a codec that can be replaced, on a bus in memory."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._broker, self._space = MemoryBroker(), MemorySpace()
        self._codec = AsyncExitStack()
        self._player = AsyncExitStack()
        self.bus: Bus = self._bus()
        self.plane = self._plane()

    def _bus(self) -> Bus:
        return MemoryBus(self._broker, "t")

    def _plane(self) -> TensorPlane:
        return memory_plane(self._space, inline_limit_bytes=1024)

    async def start(self) -> None:
        specs = self._engines.models.engines
        await self.bus.ensure(Topology.of("t", ((spec.service, key) for key, spec in specs.items())))
        await self._player.enter_async_context(stage(PLAYER, self._engines, self._bus(), self._plane(), "talker-1"))
        await self.replace_codec("codec-1")

    async def replace_codec(self, name: str) -> None:
        await self._codec.aclose()
        await self._codec.enter_async_context(stage(codec_service(), self._engines, self._bus(), self._plane(), name))

    async def stop(self) -> None:
        await self._player.aclose()
        await self._codec.aclose()

    async def pack(self, array: NDArray[Any], request_id: str) -> Payload:
        return await self.plane.pack(array, request_id=request_id, lease_s=PATIENCE_S, same_host=True)


@pytest.fixture(name="world")
async def _world(engines: Engines) -> AsyncIterator[World]:
    world = World(engines)
    await world.start()
    yield world
    await world.stop()


def pcm(models: LoadedModels, context: NDArray[np.int32] | None = None) -> NDArray[np.int16]:
    state = models.wave.new_state(seed=0, voice="", context=context)
    samples = models.wave.decode(state, CODES, segment=0, segment_frame=0, segment_end=True)
    expected: NDArray[np.int16] = np.rint(np.clip(samples, -1, 1) * np.float32(32767)).astype(np.int16)
    return expected


async def speak(
    world: World,
    request_id: str,
    *,
    context: NDArray[np.int32] | None,
    replace_after: int,
    max_frames: int | None = None,
    records: list[Any] | None = None,
) -> Answer:
    codes = None if context is None else await world.pack(context, request_id)
    work = SpeakText(
        request_id=request_id,
        pipeline="speech",
        node="talker",
        route={"talker": "player", "codec": "tokens"},
        speech=SpeechOptions(
            voice="x", reference=None if codes is None else VoiceReference(codes=codes), max_frames=max_frames
        ),
        text="",
    )
    seen = 0

    async def on_record(record: Any) -> None:
        nonlocal seen
        if records is not None:
            records.append(record)
        if isinstance(record, AudioDelta):
            seen += 1
            if seen == replace_after:
                await world.replace_codec("codec-2")

    return await answer(world.bus, world.plane, work, on_record=on_record)


@pytest.mark.parametrize("context", [None, CONTEXT[:4], CONTEXT], ids=["none", "inline", "by reference"])
async def test_frames_become_the_samples_of_the_whole(
    world: World, models: LoadedModels, context: NDArray[np.int32] | None
) -> None:
    got = await speak(world, "one", context=context, replace_after=0)
    assert len(got.samples) == len(CODES) * FRAME
    assert np.array_equal(got.samples, pcm(models, context))


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("context", [None, CONTEXT], ids=["none", "context"])
async def test_another_codec_goes_on_with_the_next_sample(
    world: World, models: LoadedModels, context: NDArray[np.int32] | None, after: int
) -> None:
    got = await speak(world, "one", context=context, replace_after=after)
    assert got.epochs["codec-gateway"] == 2
    assert np.array_equal(got.samples, pcm(models, context))


@pytest.mark.parametrize("replace_after", [0, 2], ids=["one codec", "two codecs"])
@pytest.mark.parametrize("max_frames", [None, len(CODES)], ids=["unsaid", "length"])
async def test_why_the_speech_stopped_is_said_once_after_the_last_sample(
    world: World, max_frames: int | None, replace_after: int
) -> None:
    records: list[Any] = []
    got = await speak(world, "one", context=None, replace_after=replace_after, max_frames=max_frames, records=records)
    assert len(got.samples) == len(CODES) * FRAME
    reasons = [record.finish_reason for record in records if isinstance(record, AudioDone)]
    assert reasons == ([] if max_frames is None else ["length"])
    assert isinstance(records[-1], End)
    assert isinstance(records[-2], AudioDelta if max_frames is None else AudioDone)


async def encoded(world: World, engine: str, samples: NDArray[Any], rate: int) -> EncodedReference | Failed:
    request_id = "reference"
    work = EncodeReference(
        request_id=request_id,
        pipeline="reference",
        node="codec",
        route={"codec": engine},
        payload=await world.pack(samples, request_id),
        sample_rate_hz=rate,
    )
    follow = await world.bus.follow(world.bus.subjects.out("codec", engine, request_id, "codec-gateway"))
    subject = world.bus.subjects.work("codec", engine, request_id)
    await world.bus.publish_work(subject, encode(work), Meta(deadline=time.time() + PATIENCE_S).to_headers())
    found: EncodedReference | None = None
    async with asyncio.timeout(PATIENCE_S):
        async for message in follow:
            record = decode_record(message.body)
            if isinstance(record, Failed):
                return record
            if isinstance(record, EncodedReference):
                found = record
            if isinstance(record, End):
                assert record.count == 1
                break
    assert found is not None
    return found


async def test_a_recording_becomes_codes_and_an_embedding(world: World, models: LoadedModels) -> None:
    assert models.references is not None
    recording = (np.random.default_rng(1).standard_normal(48_000) * 3000).astype(np.int16)
    got = await encoded(world, "tokens", recording, 48_000)
    assert isinstance(got, EncodedReference)
    wave = soxr.resample(recording * np.float32(1 / 32768), 48_000, 24_000)
    (expected,) = models.references.encode([wave])
    assert expected.embedding is not None
    assert got.embedding is not None
    assert np.array_equal(await world.plane.unpack(got.codes), expected.codes)
    assert np.array_equal(await world.plane.unpack(got.embedding), expected.embedding)
    assert len(expected.codes) == 13  # 24000 samples of 1920 a frame, the last one begun
    assert got.frame_rate_hz == 12.5
    assert got.fingerprint == models.references.facts.fingerprint


@pytest.mark.parametrize(
    ("engine", "count", "code", "said"),
    [
        ("tokens", 0, "invalid_value", "0.000 s"),
        ("tokens", 48_000 * 61, "invalid_value", "61.000 s"),
        ("mute", 48_000, "unsupported_value", "clones no voices"),
    ],
)
async def test_what_cannot_be_encoded_is_the_clients_fault(
    world: World, engine: str, count: int, code: str, said: str
) -> None:
    got = await encoded(world, engine, np.zeros(count, np.int16), 48_000)
    assert isinstance(got, Failed)
    assert (got.failure.code, got.failure.status) == (code, 400)
    assert said in got.failure.message
