"""A stage that stops in the middle hands its request to another, which goes on without losing or repeating anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.stages import Answer, Engines, Stage, answer, stage

from omnistage.config import load_models
from omnistage.contracts import AudioDelta, ChatMessage, GenerateText, Sampling, SpeakText, SpeechOptions, TextDelta
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import memory_plane
from omnistage.transport import Bus
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology
from omnistage_codec.bootstrap import service as codec_service
from omnistage_talker.bootstrap import service as talker_service
from omnistage_thinker.bootstrap import service as thinker_service

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TEXT = (
    "The weather is nice today and we will go for a walk. She sells flowers in the market, every morning. "
    "He closed the door, opened the window, and went to the kitchen. It was a long and difficult journey."
)


SERVICES = {"thinker": thinker_service, "talker": talker_service, "codec": codec_service}


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Loaded once; they belong to no event loop."""
    engines = Engines(load_models([Path(__file__).parents[2] / "deploy" / "models.yaml"]))
    yield engines
    asyncio.run(engines.close())


class Deployment:
    """Every stage once, on a bus in memory; any of them can be replaced while requests run."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._broker, self._space = MemoryBroker(), MemorySpace()
        self.bus: Bus = MemoryBus(self._broker, "t")
        self.plane = memory_plane(self._space, inline_limit_bytes=1024)
        self._running: dict[str, AsyncExitStack] = {}
        self.stages: dict[str, Stage] = {}

    async def start(self, *services: str) -> None:
        engines = self._engines.models.engines
        await self.bus.ensure(Topology.of("t", ((spec.service, key) for key, spec in engines.items())))
        for service in services:
            await self._start(service, 1)

    async def _start(self, service: str, number: int) -> None:
        stack = AsyncExitStack()
        self.stages[service] = await stack.enter_async_context(
            stage(
                SERVICES[service](),
                self._engines,
                MemoryBus(self._broker, "t"),
                memory_plane(self._space, inline_limit_bytes=1024),
                f"{service}-{number}",
            )
        )
        self._running[service] = stack

    async def replace(self, service: str) -> None:
        """Stop the instance with whatever it holds; start another."""
        await self._running.pop(service).aclose()
        await self._start(service, 2)

    def lose_blocks(self, request_id: str) -> int:
        """Every block of a request vanishes; how many there were."""
        lost = [key for key, block in self._space.blocks.items() if block.request_id == request_id]
        for key in lost:
            del self._space.blocks[key]
        return len(lost)

    async def stop(self) -> None:
        for stack in self._running.values():
            await stack.aclose()


def speech(request_id: str) -> SpeakText:
    return SpeakText(
        request_id=request_id,
        pipeline="speech",
        node="talker",
        route={"talker": "heart", "codec": "heart-wave"},
        speech=SpeechOptions(voice="heart", seed=3),
        text=TEXT,
    )


def chat(request_id: str) -> GenerateText:
    return GenerateText(
        request_id=request_id,
        pipeline="omni",
        node="thinker",
        route={"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"},
        messages=(ChatMessage(role="user", content="Tell me about the sea."),),
        sampling=Sampling(temperature=0.8, seed=5, max_tokens=60),
        speech=SpeechOptions(voice="heart", seed=3),
    )


async def undisturbed_and_disturbed(
    engines: Engines, services: tuple[str, ...], work: Any, replaced: str, after: type, count: int
) -> tuple[Answer, Answer, Deployment]:
    """The same request twice: once alone, once with a stage replaced after so many records of a kind."""
    deployment = Deployment(engines)
    await deployment.start(*services)
    try:
        whole = await answer(deployment.bus, deployment.plane, work("whole"))
        seen = 0

        async def on_record(record: Any) -> None:
            nonlocal seen
            if isinstance(record, after):
                seen += 1
                if seen == count:
                    await deployment.replace(replaced)

        broken = await answer(deployment.bus, deployment.plane, work("broken"), on_record=on_record)
        assert seen >= count
    finally:
        await deployment.stop()
    return whole, broken, deployment


@pytest.mark.parametrize("replaced", ["talker", "codec"])
@pytest.mark.parametrize("count", [1, 4])
async def test_speech_goes_on_with_the_same_samples(engines: Engines, replaced: str, count: int) -> None:
    whole, broken, _ = await undisturbed_and_disturbed(
        engines, ("talker", "codec"), speech, replaced, AudioDelta, count
    )
    assert len(whole.samples) > 24_000
    assert np.array_equal(whole.samples, broken.samples)
    if replaced == "codec":
        assert broken.epochs["codec-gateway"] == 2


@pytest.mark.parametrize(
    ("replaced", "after", "count"),
    [("thinker", TextDelta, 1), ("thinker", TextDelta, 9), ("talker", AudioDelta, 1), ("codec", AudioDelta, 2)],
)
async def test_a_spoken_answer_goes_on_with_the_same_words_and_samples(
    engines: Engines, replaced: str, after: type, count: int
) -> None:
    whole, broken, _ = await undisturbed_and_disturbed(
        engines, ("thinker", "talker", "codec"), chat, replaced, after, count
    )
    assert len(whole.text) > 50
    assert broken.text == whole.text
    assert np.array_equal(whole.samples, broken.samples)
    if replaced == "thinker":
        assert broken.epochs["thinker-gateway"] == 2


@pytest.mark.parametrize("after", [1, 3])
async def test_lost_blocks_are_made_again(engines: Engines, after: int) -> None:
    """All blocks of the talker vanish while the codec reads; the answer is the same."""
    deployment = Deployment(engines)
    await deployment.start("talker", "codec")
    try:
        whole = await answer(deployment.bus, deployment.plane, speech("whole"))
        seen = 0

        async def on_record(record: Any) -> None:
            nonlocal seen
            if isinstance(record, AudioDelta):
                seen += 1
                if seen == after:
                    assert deployment.lose_blocks("broken") > 0

        broken = await answer(deployment.bus, deployment.plane, speech("broken"), on_record=on_record)
        assert np.array_equal(whole.samples, broken.samples)
    finally:
        await deployment.stop()
