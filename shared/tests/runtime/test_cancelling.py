"""A stage's work is stopped, or runs out of time, in whatever state it is. Real bus rules, in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from omnistage.config import EngineSpec
from omnistage.contracts import (
    AudioDelta,
    Cancel,
    DecodeFrames,
    End,
    Failed,
    FrameChunk,
    Opened,
    Payload,
    ReadRecord,
    decode_record,
    encode,
)
from omnistage.observability import Metrics, names, setup_tracing
from omnistage.runtime.context import REQUESTS_BUCKET, RequestContext
from omnistage.runtime.control import ControlActions, ControlListener
from omnistage.runtime.engines import HostedEngine, Loaded
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Handler, Worker
from omnistage.tensors.plane import memory_plane
from omnistage.transport import Bus
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology

SLOTS = 2
ROUTE = {"talker": "t", "codec": "m"}


class FakeEngine:
    async def warm(self) -> None:
        return

    async def close(self) -> None:
        return


async def load(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
    return Loaded(FakeEngine())


class Codec:
    """The second stage of speech, and what stands before and behind it."""

    def __init__(self, bus: Bus, worker: Worker, hosted: HostedEngine, metrics: Metrics) -> None:
        self.bus = bus
        self.worker = worker
        self.hosted = hosted
        self.metrics = metrics
        self.plane = memory_plane()

    async def submit(self, request_id: str, deadline_s: float = 30.0) -> None:
        work = DecodeFrames(request_id=request_id, pipeline="speech", node="codec", route=ROUTE)
        subject = self.bus.subjects.work("codec", "m", request_id)
        await self.bus.publish_work(subject, encode(work), Meta(deadline=time.time() + deadline_s).to_headers())

    async def feed(self, request_id: str, count: int, payload: Payload | None = None) -> None:
        """Frames as a talker writes them, without an end."""
        frames = payload or await self.plane.pack(np.zeros((1, 2), np.float32), request_id=request_id, lease_s=60)
        subject = self.bus.subjects.feed("talker", "t", request_id, "talker-codec")
        base: dict[str, Any] = {"request_id": request_id, "edge": "talker-codec", "epoch": 1}
        last = await self.bus.append(subject, encode(Opened(**base, seq=0, instance="i")), {}, expected=0)
        for seq in range(count):
            chunk = FrameChunk(**base, seq=seq, payload=frames, frames=1, segment_frame=seq)
            last = await self.bus.append(subject, encode(chunk), {}, expected=last)

    def out(self, request_id: str) -> str:
        return self.bus.subjects.out("codec", "m", request_id, "codec-gateway")

    async def records(self, request_id: str) -> list[ReadRecord]:
        return [decode_record(message.body) for message in await self.bus.read(self.out(request_id))]

    async def failure(self, request_id: str) -> Failed:
        """The error that the request's log ends with."""
        async with asyncio.timeout(10):
            async for message in await self.bus.follow(self.out(request_id)):
                record = decode_record(message.body)
                if isinstance(record, Failed):
                    return record
        raise AssertionError

    async def nothing_left(self) -> None:
        """No work is claimed or waits, all slots are free but the one that is kept for the next work."""
        await until(lambda: not self.worker.held and self.hosted.slots.free == SLOTS - 1)
        await self.worker.count_pending(self.hosted)
        assert (self.hosted.queue, self.hosted.running) == (0, {})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def codec(handler: Handler, input_idle_s: float = 60.0) -> AsyncIterator[Codec]:
    bus = MemoryBus(MemoryBroker(), "t")
    await bus.ensure(Topology.of("t", [("codec", "m")]))
    metrics = Metrics("codec", "one")
    worker = Worker(
        bus=bus,
        plane=memory_plane(),
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service="codec",
        instance="one",
        handlers={DecodeFrames: handler},
        telemetry=Telemetry(metrics, setup_tracing("codec", "one", "0", None)),
        neighbours=Neighbours(bus, ""),
        input_idle_s=input_idle_s,
    )
    hosted = HostedEngine("m", EngineSpec(service="codec", engine="fake", slots=SLOTS))
    await hosted.load(load, metrics)
    await worker.serve(hosted)
    try:
        yield Codec(bus, worker, hosted, metrics)
    finally:
        await worker.drain(0)
        await bus.close()


async def decode(context: RequestContext[Any], each: Callable[[], Awaitable[None]] | None = None) -> None:
    """Read frames to their end and answer each with a sample."""
    reader = await context.input()
    try:
        async for record in reader:
            assert isinstance(record, FrameChunk)
            await context.unpack(record.payload)
            if each is not None:
                await each()
            payload = await context.pack(np.zeros(1, np.int16), "gateway")
            await context.output("gateway").send(
                AudioDelta, payload=payload, sample_rate_hz=24_000, offset=record.segment_frame
            )
        await context.output("gateway").finish()
    finally:
        await reader.close()


async def test_claimed_but_not_begun() -> None:
    """Somebody runs alone, so what was claimed before waits in its slot."""
    called: list[str] = []
    alone, go_on = asyncio.Event(), asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        called.append(context.request_id)
        if context.request_id == "suspect":
            alone.set()
            await go_on.wait()
        await context.output("gateway").finish()

    async with codec(handler) as one:
        last = 0
        for epoch in (1, 2):
            opened = Opened(request_id="suspect", edge="codec-gateway", epoch=epoch, seq=0, instance="dead")
            last = await one.bus.append(one.out("suspect"), encode(opened), {}, expected=last)
        await one.submit("suspect")
        await alone.wait()
        await one.submit("r")
        await until(lambda: "r" in one.worker.held)
        await one.worker.forget("r")
        await one.worker.forget("r")
        await until(lambda: "r" not in one.worker.held)
        assert await one.records("r") == []
        go_on.set()
        await until(lambda: not one.worker.running)
        await one.worker.forget("suspect")
        await one.nothing_left()
        assert called == ["suspect"]


async def test_waiting_for_input() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await decode(context)

    async with codec(handler) as one:
        await one.submit("r")
        await one.feed("r", 3)
        # Three frames are answered; then it waits for the fourth, which never comes.
        await until(lambda: one.hosted.running != {})
        while len(await one.records("r")) < 4:
            await asyncio.sleep(0.001)
        await one.worker.forget("r")
        await one.nothing_left()
        assert [type(record) for record in await one.records("r")] == [Opened, *[AudioDelta] * 3]
        assert one.metrics.value(names.CANCELLATIONS, model="m") == 1


async def test_while_a_tensor_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching, given_up = asyncio.Event(), asyncio.Event()

    async def slow(_self: Any, _payload: Payload, *, borrow: bool = False) -> Any:
        fetching.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await decode(context)

    async with codec(handler) as one:
        monkeypatch.setattr(type(one.plane), "unpack", slow)
        await one.submit("r")
        await one.feed("r", 1)
        await asyncio.wait_for(fetching.wait(), 10)
        await one.worker.forget("r")
        await asyncio.wait_for(given_up.wait(), 10)
        await one.nothing_left()
        assert [type(record) for record in await one.records("r")] == [Opened]


async def test_it_overtakes_data() -> None:
    """A thousand frames lie ahead of the cancellation; hardly any of them is decoded."""
    decoded = 0
    some = asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        async def each() -> None:
            nonlocal decoded
            decoded += 1
            if decoded == 5:
                some.set()
            await asyncio.sleep(0.002)

        await decode(context, each)

    async def nothing(*_: Any) -> None:
        return

    async with codec(handler) as one:
        actions = ControlActions(
            cancel=one.worker.forget, forget=nothing, redo=lambda *_: None, ping=nothing, drain=nothing
        )
        control = ControlListener(one.bus, "one", actions)
        await control.start()
        await one.feed("r", 1000)
        await one.submit("r")
        await some.wait()
        await one.bus.send(one.bus.subjects.ctl_request("r"), encode(Cancel(request_id="r")))
        await one.nothing_left()
        await control.close()
        assert decoded < 100


async def test_racing_with_completion() -> None:
    """At whatever moment of a short run it comes, the slot is free afterwards and the log has at most one end."""
    done: list[str] = []

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await context.output("gateway").finish()
        done.append(context.request_id)

    async with codec(handler) as one:
        ended = 0
        for turns in range(60):
            request_id = f"r{turns}"
            await one.submit(request_id)
            for _ in range(turns):
                await asyncio.sleep(0)
            # As the gateway cancels: first the tombstone, which stops whoever claims the work later.
            await (await one.bus.key_value(REQUESTS_BUCKET)).put(request_id, b"cancelled")
            await one.worker.forget(request_id)
            await one.bus.purge_request(request_id)
            await until(lambda: not one.worker.running)
            await one.worker.forget(request_id)
            ends = [record for record in await one.records(request_id) if isinstance(record, End | Failed)]
            assert len(ends) <= 1
            ended += request_id in done
        await one.nothing_left()
        assert 0 < ended < 60, "both ways were seen"


async def test_input_that_stays_away_is_an_error_that_names_the_edge() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await decode(context)

    async with codec(handler, input_idle_s=0.1) as one:
        await one.submit("r")
        failure = (await one.failure("r")).failure
        assert (failure.status, failure.code, failure.stage) == (504, "input_starved", "codec")
        assert "edge talker-codec" in failure.message


async def test_the_deadline_passes_while_it_waits_for_input() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await decode(context)

    async with codec(handler) as one:
        await one.submit("r", deadline_s=0.2)
        failure = (await one.failure("r")).failure
        assert (failure.status, failure.code) == (504, "deadline_exceeded")
        assert "still at work" in failure.message


async def test_the_deadline_passed_before_it_was_claimed() -> None:
    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        raise AssertionError("nobody waits for this any more")

    async with codec(handler) as one:
        await one.submit("r", deadline_s=-1)
        failure = (await one.failure("r")).failure
        assert (failure.status, failure.code) == (504, "deadline_exceeded")
        assert "while it waited" in failure.message
