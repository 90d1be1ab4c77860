"""Qwen3-TTS through talker and codec: every task, and a stage that stops in the middle of an utterance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from services.codec.tests.codes import decode_whole, load_wave
from services.talker.tests.checkpoints import make_checkpoint
from tests.support.checkpoints import tiny_codec
from tests.support.stages import Engines, answer, stage

from omnistage.config import ModelsFile
from omnistage.contracts import AudioDelta, AudioDone, Inline, SpeakText, SpeechOptions, VoiceReference
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import memory_plane
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology
from omnistage_codec.bootstrap import service as codec_service
from omnistage_talker.bootstrap import service as talker_service
from omnistage_talker.models.base import Reference

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TEXT = "The weather is nice today and we go for a walk."
SERVICES = {"talker": talker_service, "codec": codec_service}
SAMPLES_PER_FRAME = 1920
LOUDEST = 32767
FRAMES = 40

_RNG = np.random.default_rng(4)
CODES = _RNG.integers(0, 2048, (12, 16)).astype(np.int32)
EMBEDDING = _RNG.standard_normal(16).astype(np.float32)


def inline(array: NDArray[Any]) -> Inline:
    return Inline(data=array.tobytes(), dtype=str(array.dtype), shape=array.shape)


TASKS: dict[str, tuple[dict[str, Any], Reference | None]] = {
    "custom_voice": ({"voice": "ryan", "language": "en", "instructions": "Whisper."}, None),
    "voice_design": ({"voice": "default", "instructions": "An old man."}, None),
    "base": ({"voice": "mine"}, Reference(embedding=EMBEDDING, codes=CODES, text="What it says.")),
}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny_codec(folder / "codec")
    for task in TASKS:
        make_checkpoint(folder / task, tts_model_type=task)
    return folder


@pytest.fixture(scope="module", name="engines")
def _engines(folder: Path) -> Iterator[Engines]:
    """Loaded once; they belong to no event loop. Frames leave in the pace of an engine that is busy."""
    talkers = {
        task: {
            "service": "talker",
            "engine": "qwen3_tts",
            "checkpoint": str(folder / task),
            "settings": {"context": 256, "kv_tokens": 1024, "pace": 4.0},
        }
        for task in TASKS
    }
    wave = {
        "service": "codec",
        "engine": "qwen3_tts",
        "checkpoint": str(folder / "codec"),
        "settings": {"batch_invariant": True},
    }
    engines = Engines(ModelsFile.model_validate({"version": 1, "engines": talkers | {"wave": wave}, "models": {}}))
    yield engines
    asyncio.run(engines.close())


class Deployment:
    """Talker and codec on a bus in memory; either can be replaced while a request runs."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._broker, self._space = MemoryBroker(), MemorySpace()
        self.bus = MemoryBus(self._broker, "t")
        self.plane = memory_plane(self._space, inline_limit_bytes=4096)
        self._running: dict[str, AsyncExitStack] = {}

    async def start(self, service: str, number: int = 1) -> None:
        await self.bus.ensure(Topology.of("t", ((spec.service, key) for key, spec in self._specs())))
        stack = AsyncExitStack()
        plane = memory_plane(self._space, inline_limit_bytes=4096)
        bus = MemoryBus(self._broker, "t")
        await stack.enter_async_context(stage(SERVICES[service](), self.engines, bus, plane, f"{service}-{number}"))
        self._running[service] = stack

    async def replace(self, service: str) -> None:
        await self._running.pop(service).aclose()
        await self.start(service, 2)

    async def stop(self) -> None:
        for stack in self._running.values():
            await stack.aclose()

    def _specs(self) -> Iterator[tuple[str, Any]]:
        yield from self.engines.models.engines.items()


@asynccontextmanager
async def deployed(engines: Engines) -> AsyncIterator[Deployment]:
    deployment = Deployment(engines)
    try:
        for service in SERVICES:
            await deployment.start(service)
        yield deployment
    finally:
        await deployment.stop()


def speech(task: str) -> SpeechOptions:
    options, reference = TASKS[task]
    cloned = None
    if reference is not None:
        assert reference.codes is not None
        assert reference.embedding is not None
        cloned = VoiceReference(
            codes=inline(reference.codes), text=reference.text, embedding=inline(reference.embedding)
        )
    return SpeechOptions(seed=3, max_frames=FRAMES, reference=cloned, **options)


def work(task: str, request_id: str) -> SpeakText:
    route = {"talker": task, "codec": "wave"}
    return SpeakText(
        request_id=request_id, pipeline="speech", node="talker", route=route, speech=speech(task), text=TEXT
    )


async def _alone(engines: Engines, folder: Path, task: str) -> NDArray[np.float32]:
    """What the two engines make of it without anything between them."""
    loaded = await engines.load(talker_service(), task)
    engine: Any = loaded.engine

    async def pieces() -> AsyncIterator[str]:
        yield TEXT

    async with aclosing(engine.speak(pieces(), speech(task), reference=TASKS[task][1])) as chunks:
        frames = np.concatenate([chunk.frames async for chunk in chunks])
    assert frames.shape == (FRAMES, 16)
    context = CODES if task == "base" else None
    return decode_whole(load_wave(folder / "codec"), frames, context)


@pytest.mark.parametrize("task", TASKS)
async def test_every_task_sounds_as_its_engines_say(engines: Engines, folder: Path, task: str) -> None:
    reasons: list[str] = []

    async def on_record(record: Any) -> None:
        if isinstance(record, AudioDone):
            reasons.append(record.finish_reason)

    async with deployed(engines) as system:
        found = await answer(system.bus, system.plane, work(task, "r"), on_record=on_record)
    assert reasons == ["length"]
    assert len(found.samples) == FRAMES * SAMPLES_PER_FRAME
    expected = np.clip(await _alone(engines, folder, task), -1, 1)
    assert np.abs(found.samples / LOUDEST - expected).max() < 2 / LOUDEST + 1e-4


@pytest.mark.parametrize("replaced", list(SERVICES))
@pytest.mark.parametrize("task", ["custom_voice", "base"])
@pytest.mark.parametrize("count", [1, 4])
async def test_another_instance_goes_on_exactly(engines: Engines, task: str, replaced: str, count: int) -> None:
    async with deployed(engines) as system:
        whole = await answer(system.bus, system.plane, work(task, "whole"))
        seen = 0
        reasons: list[str] = []

        async def on_record(record: Any) -> None:
            nonlocal seen
            if isinstance(record, AudioDone):
                reasons.append(record.finish_reason)
            if isinstance(record, AudioDelta):
                seen += 1
                if seen == count:
                    await system.replace(replaced)

        broken = await answer(system.bus, system.plane, work(task, "broken"), on_record=on_record)
    assert seen > count
    assert reasons == ["length"]
    assert np.array_equal(broken.samples, whole.samples)
