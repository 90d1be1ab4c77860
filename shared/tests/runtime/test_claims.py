"""The claim book: whoever holds a claim last keeps it, whatever dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omnistage.contracts import End, Opened, TextDelta
from omnistage.runtime.claims import CLAIMS_BUCKET, ClaimBook, hand_back
from omnistage.runtime.context import RequestContext
from omnistage.testing.text_stage import text_stage
from omnistage.transport import Claim, WorkQueue
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology


async def claimed(queue: WorkQueue) -> Claim:
    async with asyncio.timeout(5):
        return await queue.claim()


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus(MemoryBroker(), "t")
    await bus.ensure(Topology.of("t", [("thinker", "m")]))
    await bus.publish_work(bus.subjects.work("thinker", "m", "r"), b"", {})
    return bus


async def test_what_a_dead_instance_held_is_given_back(bus: MemoryBus) -> None:
    bucket = await bus.key_value(CLAIMS_BUCKET)
    queue = await bus.work_queue("thinker", "m")
    await ClaimBook(bucket, "dead").enter("r", "m", await claimed(queue))
    assert await hand_back(bus, "dead") == 1
    assert (await claimed(queue)).deliveries == 2
    assert await bucket.keys() == []
    assert await hand_back(bus, "dead") == 0


async def test_what_another_has_taken_since_is_left_to_it(bus: MemoryBus) -> None:
    bucket = await bus.key_value(CLAIMS_BUCKET)
    queue = await bus.work_queue("thinker", "m")
    first = await claimed(queue)
    await ClaimBook(bucket, "hung").enter("r", "m", first)
    await first.nak(0.0)
    await ClaimBook(bucket, "living").enter("r", "m", await claimed(queue))
    assert await hand_back(bus, "hung") == 0
    assert await bucket.keys() == ["living.r.m"]
    # The other way round the living one's claim is the later: it goes back whoever else has an entry.
    await ClaimBook(bucket, "hung").enter("q", "m", first)
    assert await hand_back(bus, "living") == 1
    assert (await claimed(queue)).deliveries == 3


async def test_a_holder_goes_on_when_its_work_is_delivered_to_it_again() -> None:
    calls, begun, go_on = 0, asyncio.Event(), asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        nonlocal calls
        calls += 1
        begun.set()
        await go_on.wait()
        await context.output("gateway").send(TextDelta, text="x")
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.submit("r")
        await begun.wait()
        (held,) = one.worker._holdings
        before = held.claim
        await one.bus.give_back(before.token)
        async with asyncio.timeout(5):
            while held.claim is before:
                await asyncio.sleep(0.005)
        assert held.claim.deliveries == 2
        go_on.set()
        assert [type(record) for record in await one.ended("r")] == [Opened, TextDelta, End]
        assert calls == 1
        assert one.hosted.slots.free == one.hosted.spec.slots - 1, "one is reserved for what comes next"
        await one.worker.forget("r")
        assert [left.subject for left in await one.bus.survey() if ".work." in left.subject] == []
