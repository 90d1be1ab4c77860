"""A worker with one handler for text, on the in-memory bus: for tests of what the worker does around handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnistage.config import EngineSpec
from omnistage.contracts import (
    End,
    Failed,
    GenerateText,
    Opened,
    ReadRecord,
    Record,
    Sampling,
    TextDelta,
    decode_record,
    encode,
)
from omnistage.observability import Metrics, setup_tracing
from omnistage.runtime.context import REQUESTS_BUCKET
from omnistage.runtime.engines import HostedEngine, Loaded
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Handler, Worker
from omnistage.tensors.plane import memory_plane
from omnistage.transport import Bus, BusOptions
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology

SPEC = EngineSpec(service="thinker", engine="fake", slots=2)


class _NoEngine:
    """Handlers do the work themselves."""

    async def warm(self) -> None:
        return

    async def close(self) -> None:
        return


async def _load(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
    return Loaded(_NoEngine())


class TextStage:
    """A worker with one handler, its bus, and what the gateway would see."""

    def __init__(self, bus: Bus, worker: Worker, hosted: HostedEngine, metrics: Metrics) -> None:
        self.bus = bus
        self.worker = worker
        self.hosted = hosted
        self.metrics = metrics

    async def submit(self, request_id: str, deadline_s: float = 30.0, body: bytes | None = None) -> None:
        work = GenerateText(
            request_id=request_id,
            pipeline="text",
            node="thinker",
            route={"thinker": "m"},
            messages=(),
            sampling=Sampling(),
        )
        await self.bus.publish_work(
            self.bus.subjects.work("thinker", "m", request_id),
            encode(work) if body is None else body,
            Meta(deadline=time.time() + deadline_s).to_headers(),
        )

    def subject(self, request_id: str) -> str:
        return self.bus.subjects.out("thinker", "m", request_id, "thinker-gateway")

    async def records(self, request_id: str) -> list[ReadRecord]:
        return [decode_record(message.body) for message in await self.bus.read(self.subject(request_id))]

    async def ended(self, request_id: str) -> list[ReadRecord]:
        """All records, once the last of them is an end and nothing runs any more."""
        records = await self.ended_beside(request_id)
        await self.idle()
        return records

    async def ended_beside(self, request_id: str) -> list[ReadRecord]:
        """All records, once the last of them is an end."""
        async with asyncio.timeout(10):
            async for message in await self.bus.follow(self.subject(request_id)):
                if isinstance(decode_record(message.body), End | Failed):
                    break
        return await self.records(request_id)

    async def idle(self) -> None:
        async with asyncio.timeout(10):
            while self.worker.running:  # noqa: ASYNC110 - the worker has no event for it
                await asyncio.sleep(0.005)

    async def crash(self, request_id: str, epoch: int) -> None:
        """Leave in its log what an instance leaves that ended without a word."""
        messages = await self.bus.read(self.subject(request_id))
        seq = sum(isinstance(decode_record(message.body), TextDelta) for message in messages)
        edge = "thinker-gateway"
        await self.write(
            request_id, Opened(request_id=request_id, edge=edge, epoch=epoch, seq=seq, instance=f"dead-{epoch}")
        )

    async def write(self, request_id: str, record: Record) -> None:
        """Append a record as whoever holds the log."""
        messages = await self.bus.read(self.subject(request_id))
        last = messages[-1].sequence if messages else 0
        await self.bus.append(self.subject(request_id), encode(record), {}, expected=last)


@asynccontextmanager
async def text_stage(
    handler: Handler, broker: MemoryBroker | None = None, name: str = "one", options: BusOptions | None = None
) -> AsyncIterator[TextStage]:
    bus = MemoryBus(broker or MemoryBroker(), "t", options)
    await bus.ensure(Topology.of("t", [("thinker", "m")]))
    metrics = Metrics("thinker", name)
    worker = Worker(
        bus=bus,
        plane=memory_plane(),
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service="thinker",
        instance=name,
        handlers={GenerateText: handler},
        telemetry=Telemetry(metrics, setup_tracing("thinker", name, "0", None)),
        neighbours=Neighbours(bus, ""),
    )
    hosted = HostedEngine("m", SPEC)
    await hosted.load(_load, metrics)
    await worker.serve(hosted)
    try:
        yield TextStage(bus, worker, hosted, metrics)
    finally:
        await worker.drain(0)
        await bus.close()
