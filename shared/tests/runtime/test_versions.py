"""Instances of two versions side by side: who takes which work, and what becomes of records that one does not know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from omnistage.config import EngineSpec
from omnistage.contracts import (
    CONTRACT_VERSION,
    AnyWork,
    Cancel,
    Control,
    End,
    GenerateText,
    Opened,
    ReadRecord,
    Record,
    Released,
    Sampling,
    SpeakText,
    SpeechOptions,
    TextChunk,
    TextDelta,
    UnknownRecord,
    decode_record,
    encode,
)
from omnistage.errors import StageFailed
from omnistage.observability import Metrics, names, setup_tracing
from omnistage.runtime import worker as worker_module
from omnistage.runtime.context import REQUESTS_BUCKET, RequestContext
from omnistage.runtime.control import ControlActions, ControlListener
from omnistage.runtime.edges import EdgeOrder, EdgeReader, EdgeWriter
from omnistage.runtime.engines import HostedEngine, Loaded
from omnistage.runtime.history import EdgeHistory
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Worker
from omnistage.tensors.plane import memory_plane
from omnistage.transport import Bus
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology

LATER = CONTRACT_VERSION + 1
EDGE: dict[str, Any] = {"request_id": "r", "edge": "thinker-talker"}


class FakeEngine:
    async def warm(self) -> None:
        return

    async def close(self) -> None:
        return


async def load(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
    return Loaded(FakeEngine())


def unknown(seq: int, epoch: int = 1) -> UnknownRecord:
    return UnknownRecord(**EDGE, epoch=epoch, seq=seq, kind="of_later")


def chunk(seq: int, epoch: int = 1) -> TextChunk:
    return TextChunk(**EDGE, epoch=epoch, seq=seq, text=str(seq))


class Instance:
    """A worker, and the requests that its handler was called for."""

    def __init__(self, worker: Worker, hosted: HostedEngine, metrics: Metrics) -> None:
        self.worker = worker
        self.hosted = hosted
        self.metrics = metrics
        self.took: list[str] = []


@asynccontextmanager
async def instance(broker: MemoryBroker, name: str, slots: int = 1) -> AsyncIterator[Instance]:
    bus = MemoryBus(broker, "t")
    await bus.ensure(Topology.of("t", [("thinker", "m"), ("talker", "v")]))
    metrics = Metrics("thinker", name)

    async def answer(context: RequestContext[Any], work: Any) -> None:
        made.took.append(work.request_id)
        if context.has("talker"):
            await context.start(speak(work))
            await context.output("talker").finish()
        await context.output("gateway").send(TextDelta, text=name)
        await context.output("gateway").finish()

    worker = Worker(
        bus=bus,
        plane=memory_plane(),
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service="thinker",
        instance=name,
        handlers={GenerateText: answer},
        telemetry=Telemetry(metrics, setup_tracing("thinker", name, "0", None)),
        neighbours=Neighbours(bus, ""),
    )
    hosted = HostedEngine("m", EngineSpec(service="thinker", engine="fake", slots=slots))
    made = Instance(worker, hosted, metrics)
    await hosted.load(load, metrics)
    await worker.serve(hosted)
    try:
        yield made
    finally:
        await worker.drain(0)
        await bus.close()


def speak(work: GenerateText) -> AnyWork:
    return SpeakText(
        request_id=work.request_id, pipeline=work.pipeline, node="talker", route=work.route,
        speech=SpeechOptions(voice="a"),
    )  # fmt: skip


async def submit(bus: Bus, request_id: str, contract: int, pipeline: str = "text", **fields: Any) -> None:
    route = {"thinker": "m"} if pipeline == "text" else {"thinker": "m", "talker": "v", "codec": "w"}
    work = GenerateText(
        request_id=request_id, pipeline=pipeline, messages=(), sampling=Sampling(),
        **({"node": "thinker", "route": route} | fields),
    )  # fmt: skip
    headers = Meta(deadline=time.time() + 60, contract=contract).to_headers()
    await bus.publish_work(bus.subjects.work("thinker", "m", request_id), encode(work), headers)


async def ended(bus: Bus, request_id: str) -> list[ReadRecord]:
    subject = bus.subjects.out("thinker", "m", request_id, "thinker-gateway")
    async with asyncio.timeout(10):
        async for message in await bus.follow(subject):
            if isinstance(decode_record(message.body), End):
                break
    return [decode_record(message.body) for message in await bus.read(subject)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_work_for_a_later_version_waits_for_an_instance_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    async with instance(broker, "old") as old:
        bus = MemoryBus(broker, "t")
        await submit(bus, "needs-later", LATER)
        await until(lambda: old.metrics.value(names.WORK_FOR_LATER, model="m") >= 2)
        await submit(bus, "for-all", CONTRACT_VERSION)
        await ended(bus, "for-all")
        assert old.took == ["for-all"]
        monkeypatch.setattr(worker_module, "CONTRACT_VERSION", LATER)
        records = await ended(bus, "needs-later")
        assert [record.text for record in records if isinstance(record, TextDelta)] == ["old"]
        assert [record.epoch for record in records if isinstance(record, Opened)] == [1], "no crash was counted"
        assert old.metrics.value(names.POISONED, model="m") == 0
        assert broker.dead == []


async def test_everything_of_a_request_is_for_the_version_that_its_beginning_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "CONTRACT_VERSION", LATER)
    broker = MemoryBroker()
    async with instance(broker, "one"):
        bus = MemoryBus(broker, "t")
        await submit(bus, "r", LATER, "omni")
        queue = await bus.work_queue("talker", "v")
        async with asyncio.timeout(10):
            claim = await queue.claim()
        assert Meta.from_headers(claim.message.headers).contract == LATER
        await queue.close()


@pytest.mark.parametrize("fields", [{"pipeline": "of_later"}, {"node": "talker"}, {"node": "nowhere"}])
async def test_work_of_an_unknown_way_is_buried_and_holds_no_slot(fields: dict[str, Any]) -> None:
    broker = MemoryBroker()
    async with instance(broker, "one") as one:
        bus = MemoryBus(broker, "t")
        for number in range(3):
            await submit(bus, f"bad-{number}", 1, **{"pipeline": "omni", **fields})
        await until(lambda: one.metrics.value(names.POISONED, model="m") == 3)
        await submit(bus, "good", 1)
        await ended(bus, "good")
        assert one.took == ["good"]


def test_unknown_records_count_as_data() -> None:
    order = EdgeOrder(EDGE["edge"])
    records: list[ReadRecord] = [
        Opened(**EDGE, epoch=1, instance="a"), chunk(0), unknown(1), chunk(2), unknown(3),
        End(**EDGE, epoch=1, seq=4, count=4),
    ]  # fmt: skip
    accepted = [order.accept(record) for record in records]
    assert [record.seq for record in accepted if record is not None] == [0, 1, 2, 3]
    assert order.ended


def test_a_missing_unknown_record_is_missed() -> None:
    order = EdgeOrder(EDGE["edge"])
    order.accept(chunk(0))
    with pytest.raises(StageFailed, match="record 2 came where 1 was due"):
        order.accept(chunk(2))


def test_who_takes_over_counts_unknown_records_of_the_holder_before() -> None:
    history = EdgeHistory.of(
        [Opened(**EDGE, epoch=1, instance="later"), chunk(0), unknown(1), Released(**EDGE, epoch=1, seq=2)]
    )
    assert (len(history.data), history.crashes, history.finished) == (2, 0, False)


async def test_a_log_of_a_later_holder_is_read_and_gone_on_with() -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    subject = bus.subjects.feed("thinker", "m", "r", EDGE["edge"])
    last = 0
    written: list[Record] = [Opened(**EDGE, epoch=1, instance="later"), chunk(0), unknown(1)]
    for record in written:
        last = await bus.append(subject, encode(record), {}, expected=last)
    writer = EdgeWriter(bus, subject, instance="old", meta=Meta(deadline=time.time() + 60), **EDGE)
    await writer.open()
    await writer.send(TextChunk, text="2")
    await writer.finish()
    skipped: list[None] = []
    reader = EdgeReader(bus, subject, idle_s=5, skipped=lambda: skipped.append(None), **EDGE)
    assert [record.seq async for record in reader] == [0, 2]
    assert len(skipped) == 1
    await bus.close()


async def test_an_unreadable_record_fails_the_edge_by_name() -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    subject = bus.subjects.feed("thinker", "m", "r", EDGE["edge"])
    await bus.append(subject, b"\xc1", {}, expected=0)
    with pytest.raises(StageFailed, match="cannot be read") as caught:
        [record async for record in EdgeReader(bus, subject, idle_s=5, **EDGE)]
    assert caught.value.code == "bad_record"
    await bus.close()


async def test_control_messages_of_later_versions_are_counted_and_nobody_dies() -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    cancelled: list[str] = []
    skipped: list[None] = []

    async def cancel(request_id: str) -> None:
        cancelled.append(request_id)

    async def nothing() -> None:
        raise AssertionError("nobody asked for this")

    actions = ControlActions(
        cancel=cancel, forget=cancel, redo=lambda *_: None, ping=nothing, drain=nothing
    )  # fmt: skip
    listener = ControlListener(bus, "i", actions, lambda: skipped.append(None))
    await listener.start()
    for number in range(50):
        later = msgspec.msgpack.encode({"type": f"of_later_{number}", "request_id": "r"})
        await bus.send(bus.subjects.ctl_everyone(), later)
    control: Control = Cancel(request_id="r")
    await bus.send(bus.subjects.ctl_request("r"), encode(control))
    await until(lambda: cancelled)
    assert cancelled == ["r"]
    await until(lambda: len(skipped) == 50)
    assert listener.unreadable == 50
    await listener.close()
    await bus.close()
