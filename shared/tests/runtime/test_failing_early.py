"""A failure is heard at the gateway, even where the stage between was never started."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from omnistage.config import EngineSpec
from omnistage.contracts import Failed, SpeakText, SpeechOptions, decode_record, encode
from omnistage.errors import QueueFull
from omnistage.observability import Metrics, setup_tracing
from omnistage.runtime.context import REQUESTS_BUCKET, RequestContext
from omnistage.runtime.engines import HostedEngine, Loaded
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Worker
from omnistage.tensors.plane import memory_plane
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology


class FakeEngine:
    async def warm(self) -> None:
        return

    async def close(self) -> None:
        return


async def load(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
    return Loaded(FakeEngine())


async def test_a_stage_that_fails_before_it_started_the_next_one_is_heard_at_the_gateway() -> None:
    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        raise QueueFull("full", retry_after_s=1.0)

    bus = MemoryBus(MemoryBroker(), "t")
    await bus.ensure(Topology.of("t", [("talker", "v"), ("codec", "w")]))
    worker = Worker(
        bus=bus,
        plane=memory_plane(),
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service="talker",
        instance="one",
        handlers={SpeakText: handler},
        telemetry=Telemetry(Metrics("talker", "one"), setup_tracing("talker", "one", "0", None)),
        neighbours=Neighbours(bus, ""),
    )
    hosted = HostedEngine("v", EngineSpec(service="talker", engine="fake", slots=2))
    await hosted.load(load, Metrics("talker", "one"))
    await worker.serve(hosted)
    route = {"talker": "v", "codec": "w"}
    work = SpeakText(
        request_id="r", pipeline="speech", node="talker", route=route, text="x", speech=SpeechOptions(voice="v")
    )
    subject = bus.subjects.work("talker", "v", "r")
    await bus.publish_work(subject, encode(work), Meta(deadline=time.time() + 30).to_headers())
    async with asyncio.timeout(10):
        async for message in await bus.follow(bus.subjects.out("codec", "w", "r", "codec-gateway")):
            record = decode_record(message.body)
            if isinstance(record, Failed):
                break
    assert isinstance(record, Failed)
    assert (record.failure.code, record.failure.stage, record.failure.retry_after_s) == ("queue_full", "talker", 1.0)
    await worker.drain(0)
    await bus.close()
