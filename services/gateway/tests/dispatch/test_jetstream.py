"""The same dispatcher over a real broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnistage.contracts import AudioDelta, Cancel, Forget, TextDelta
from omnistage.errors import StageFailed
from omnistage.testing.servers import NatsServer, nats_server
from omnistage.transport import Bus, Topology, connect
from omnistage_gateway.dispatch.interface import AudioPiece

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import Stage, World

pytestmark = pytest.mark.integration

STAGES = (("thinker", "llm"), ("talker", "heart"), ("codec", "wave"))
LOGS = (
    ("out", "thinker", "llm", "thinker-gateway"),
    ("feed", "thinker", "llm", "thinker-talker"),
    ("feed", "talker", "heart", "talker-codec"),
    ("out", "codec", "wave", "codec-gateway"),
)


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as running:
        yield running


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    bus = await connect(server.url, "test", name="gateway")
    await bus.ensure(Topology.of("test", STAGES))
    yield bus
    await bus.close()


@pytest.fixture
async def world(bus: Bus, make_world_on: Callable[..., Any]) -> AsyncIterator[World]:
    async with make_world_on(bus, total=500, per_tenant=500, late_s=0.3) as made:
        yield made


async def left(bus: Bus, *request_ids: str) -> list[str]:
    """Log records of these requests that the broker still holds, and work that waits."""
    found = [
        f"{kind} {request_id} {edge}"
        for request_id in request_ids
        for kind, stage, model, edge in LOGS
        for _ in await bus.read(getattr(bus.subjects, kind)(stage, model, request_id, edge))
    ]
    for stage, model in STAGES:
        queue = await bus.work_queue(stage, model)
        found += [f"work of {stage}"] * await queue.pending()
        await queue.close()
    return found


async def test_an_answer_is_heard_whole_and_leaves_nothing(world: World) -> None:
    await world.serve_all()
    events = await world.collect(world.chat("one two three"), "r1")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "one two three "
    samples = np.concatenate([event.samples for event in events if isinstance(event, AudioPiece)])
    assert samples.tolist() == (np.arange(110_000) % 32768).tolist()
    await world.dispatcher.settled()
    assert await left(world.bus, "r1") == []
    assert await world.tombstone("r1") == b"done"
    while not world.told(Forget):
        await asyncio.sleep(0.01)
    assert world.told(Cancel) == []


async def test_an_error_ends_the_request_and_leaves_nothing(world: World) -> None:
    async def gap(stage: Stage, work: Any) -> None:
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.audio(await stage.audio(5, 9), 0))

    await world.serve("heart", gap)
    with pytest.raises(StageFailed) as failed:
        await world.collect(world.speak("abc"), "r1")
    assert (failed.value.code, failed.value.stage) == ("audio_gap", "codec")
    await world.dispatcher.settled()
    assert await left(world.bus, "r1") == []
    assert await world.tombstone("r1") == b"cancelled"


async def test_clients_that_leave_at_random_leave_nothing_at_the_broker(world: World) -> None:
    noise = random.Random(5)
    await world.serve_all()

    async def client(number: int) -> None:
        plan = world.speak("abc") if number % 2 else world.chat("one two three")
        async with world.run(plan, f"r{number}") as running:
            async for _ in running.events():
                pass

    async with asyncio.TaskGroup() as group:
        for number in range(40):
            task = group.create_task(client(number))
            asyncio.get_running_loop().call_later(noise.uniform(0, 0.6), task.cancel)
    await world.dispatcher.settled()
    assert await left(world.bus, *(f"r{number}" for number in range(40))) == []
    assert len(await world.collect(world.speak("abc"), "after")) == 3


async def test_a_broker_that_restarts_costs_no_sample(world: World, server: NatsServer) -> None:
    back = asyncio.Event()

    async def two_halves(stage: Stage, work: Any) -> None:
        writer = await stage.open("codec-gateway")
        for part in range(2):
            for start in range(part * 50_000, part * 50_000 + 50_000, 10_000):
                await writer.send(AudioDelta, **await stage.audio(start, start + 10_000))
            await back.wait()
        await writer.finish()

    await world.serve("heart", two_halves)
    async with world.run(world.speak(deadline_s=60.0), "r1") as running:
        events = running.events()
        samples = [(await anext(events)).samples for _ in range(5)]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        back.set()
        samples += [event.samples async for event in events]
    assert np.concatenate(samples).tolist() == (np.arange(100_000) % 32768).tolist()
    await world.dispatcher.settled()
    assert await left(world.bus, "r1") == []
