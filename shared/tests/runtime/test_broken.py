"""Messages that make no sense: counted, kept in class dead, and nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.config import EngineSpec
from omnistage.contracts import (
    AudioDelta,
    Cancel,
    Drain,
    End,
    EngineStatus,
    Forget,
    FrameChunk,
    Inline,
    MediaGrid,
    Opened,
    Ping,
    Presence,
    Record,
    Redo,
    SpeakText,
    SpeechOptions,
    TextChunk,
    ThinkerRows,
    decode_record,
    encode,
)
from omnistage.errors import StageFailed
from omnistage.observability import Metrics, names, setup_tracing
from omnistage.runtime.broken import Broken, bury, check_record, read_control, read_presence
from omnistage.runtime.context import REQUESTS_BUCKET, RequestContext
from omnistage.runtime.edges import EdgeReader, EdgeWriter
from omnistage.runtime.engines import HostedEngine
from omnistage.runtime.meta import DEADLINE_MAX_S, SENT_HEADER, Meta, seconds_since_sent
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Worker
from omnistage.subjects import Subjects
from omnistage.tensors.plane import memory_plane
from omnistage.transport import Message
from omnistage.transport.bus import MAX_BODY_BYTES
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology

SLOTS = 2
SUBJECTS = Subjects("t")
GOOD = SpeakText(
    request_id="r", pipeline="speech", node="talker", route={"talker": "m", "codec": "c"}, text="x",
    speech=SpeechOptions(voice="v"),
)  # fmt: skip
EDGE: dict[str, Any] = {"request_id": "r", "edge": "talker-codec"}


def changed(**fields: Any) -> bytes:
    return encode(msgspec.structs.replace(GOOD, **fields))


BROKEN_WORK = {
    "no message": b"\xff\x00",
    "empty": b"",
    "unknown tag": encode(GOOD).replace(b"speak_text", b"sing_texts"),
    "too deep": b"\x91" * 100_000 + b"\xc0",
    "another request": changed(request_id="other"),
    "no pipeline": changed(pipeline="nowhere"),
    "no node": changed(node="moon"),
    "node of another service": changed(node="codec"),
    "not on its route": changed(route={"codec": "c"}),
    "another engine": changed(route={"talker": "other", "codec": "c"}),
    "out of the pipeline": changed(route={"talker": "m", "codec": "c", "moon": "m"}),
    "route to a path": changed(route={"talker": "m", "codec": "../../x"}),
    "route to everybody": changed(route={"talker": "m", "codec": "*"}),
}


@dataclass
class Stage:
    bus: MemoryBus
    broker: MemoryBroker
    hosted: HostedEngine
    metrics: Metrics
    worker: Worker

    async def submit(self, body: bytes, request_id: str = "r", headers: dict[str, str] | None = None) -> None:
        given = Meta(deadline=time.time() + 30).to_headers() | (headers or {})
        await self.bus.publish_work(SUBJECTS.work("talker", "m", request_id), body, given)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    async def serves(self) -> None:
        """Every slot is free, and as many good requests as there are slots run side by side and end."""
        await self.until(lambda: not self.worker.running and self.hosted.slots.free == SLOTS - 1)
        for number in range(SLOTS + 1):
            name = f"good-{number}"
            await self.submit(encode(msgspec.structs.replace(GOOD, request_id=name)), name)
            log = await self.bus.follow(SUBJECTS.feed("talker", "m", name, "talker-codec"))
            async with asyncio.timeout(10):
                async for message in log:
                    if isinstance(decode_record(message.body), End):
                        break


async def handler(context: RequestContext[Any], _work: Any) -> None:
    await context.output("codec").finish()


@pytest.fixture
async def one() -> AsyncIterator[Stage]:
    async with serving() as stage:
        yield stage


@asynccontextmanager
async def serving() -> AsyncIterator[Stage]:
    """A talker whose engine does nothing."""
    broker = MemoryBroker()
    bus = MemoryBus(broker, "t")
    await bus.ensure(Topology.of("t", [("talker", "m")]))
    metrics = Metrics("talker", "one")
    worker = Worker(
        bus=bus,
        plane=memory_plane(),
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service="talker",
        instance="one",
        handlers={SpeakText: handler},
        telemetry=Telemetry(metrics, setup_tracing("talker", "one", "0", None)),
        neighbours=Neighbours(bus, ""),
    )
    hosted = HostedEngine("m", EngineSpec(service="talker", engine="fake", slots=SLOTS))
    hosted.loaded = _Loaded()  # type: ignore[assignment] # no handler of these tests asks for an engine
    await worker.serve(hosted)
    try:
        yield Stage(bus, broker, hosted, metrics, worker)
    finally:
        await worker.drain(0)
        await bus.close()


class _Loaded:
    engine = None

    @staticmethod
    def stalled_s() -> float:
        return 0.0


@pytest.mark.parametrize("name", BROKEN_WORK)
async def test_broken_work_is_put_aside(one: Stage, name: str) -> None:
    await one.submit(BROKEN_WORK[name])
    await one.until(lambda: one.broker.dead)
    assert one.broker.dead[0].body == BROKEN_WORK[name]
    assert one.broker.dead[0].subject == SUBJECTS.dead("talker", "m", "r")
    assert one.metrics.value(names.SKIPPED_MESSAGES, via="work") == 1
    assert one.metrics.value(names.POISONED, model="m") == 1
    await one.serves()
    assert len(one.broker.dead) == 1


@pytest.mark.parametrize(
    ("header", "value"),
    [("omni-deadline", "nan"), ("omni-deadline", "inf"), ("omni-deadline", "-inf"), ("omni-deadline", "soon"),
     ("omni-contract", "x"), ("omni-contract", "9" * 5000)],
)  # fmt: skip
async def test_work_with_forged_headers_is_put_aside(one: Stage, header: str, value: str) -> None:
    await one.submit(encode(GOOD), headers={header: value})
    await one.until(lambda: one.broker.dead)
    await one.serves()


async def test_a_deadline_in_a_thousand_years_is_no_reason_to_keep_anything_so_long() -> None:
    meta = Meta.from_headers({"omni-deadline": f"{time.time() + 3e10:.0f}"})
    assert DEADLINE_MAX_S - 5 < meta.remaining_s <= DEADLINE_MAX_S


@pytest.mark.parametrize("sent", ["nan", "inf", "-inf", "-1e308", "0", "9" * 30, "", "soon"])
def test_a_time_of_sending_that_cannot_be_is_in_no_average(sent: str) -> None:
    assert seconds_since_sent({SENT_HEADER: sent}) is None
    assert seconds_since_sent({SENT_HEADER: f"{time.time() + 60}"}) == 0.0


async def test_work_for_a_later_version_that_nobody_waits_for_is_put_aside(one: Stage) -> None:
    await one.submit(encode(GOOD), headers={"omni-contract": "99", "omni-deadline": f"{time.time() - 60:.3f}"})
    await one.until(lambda: one.broker.dead)
    await one.serves()


async def test_a_stage_of_many_broken_items_keeps_its_slots(one: Stage) -> None:
    bodies = list(BROKEN_WORK.values())
    for number in range(10 * SLOTS):
        await one.submit(bodies[number % len(bodies)], f"r-{number}")
    await one.until(lambda: len(one.broker.dead) == 10 * SLOTS)
    await one.serves()


@pytest.mark.parametrize(
    ("subject", "where"),
    [
        ("t.v1.work.talker.m.UPPER", "unreadable"),
        ("t.v1.work.talker.m.", "unreadable"),
        ("t.v1.work.talker.m.../../x", "unreadable"),
        ("t.v1.work", "unreadable"),
        ("t.v1.work.talker.m.fine", "fine"),
    ],
)
async def test_anything_can_be_buried(subject: str, where: str) -> None:
    """However large, whatever its subject: else it would come again and again."""
    broker = MemoryBroker()
    bus = MemoryBus(broker, "t")
    assert await bury(bus, Message(subject, b"x" * (MAX_BODY_BYTES + 1)), "why")
    assert broker.dead[0].subject.rpartition(".")[2] == where
    assert len(broker.dead[0].body) == MAX_BODY_BYTES
    await bus.close()


def frame_chunk(**fields: Any) -> FrameChunk:
    payload = Inline(data=bytes(8), dtype="float32", shape=(2, 1))
    return FrameChunk(**{**EDGE, "epoch": 1, "frames": 2, "payload": payload, **fields})


def audio(**fields: Any) -> AudioDelta:
    payload = Inline(data=bytes(8), dtype="float32", shape=(2,))
    return AudioDelta(**{**EDGE, "epoch": 1, "payload": payload, "sample_rate_hz": 24_000, "offset": 0, **fields})


def thinker_rows(**fields: Any) -> ThinkerRows:
    rows = Inline(data=bytes(8), dtype="float32", shape=(2, 1))
    base = {"epoch": 1, "tokens": (5, 6), "start": 0, "prompt_tokens": 2, "embeds": rows, "hidden": rows}
    return ThinkerRows(**{**EDGE, **base, **fields})


SHAPES = [(-1,), (2**40,), (2**20, 2**20), (1,) * 70]

BROKEN_RECORDS: list[Record] = [
    thinker_rows(tokens=(5,)),
    thinker_rows(tokens=(5, -6)),
    thinker_rows(start=-1),
    thinker_rows(prompt_tokens=2**40),
    thinker_rows(hidden=Inline(data=bytes(4), dtype="float32", shape=(1, 1))),
    thinker_rows(embeds=Inline(data=bytes(8), dtype="float32", shape=(2,))),
    thinker_rows(marks=Inline(data=b"", dtype="float32", shape=(-1,))),
    thinker_rows(media=(MediaGrid(kind="image", time=0, height=2, width=2),)),
    thinker_rows(media=(MediaGrid(kind="video", time=1, height=2, width=2, seconds_per_step=float("nan")),)),
    frame_chunk(request_id="another"),
    frame_chunk(edge="codec-gateway"),
    frame_chunk(epoch=-1),
    frame_chunk(epoch=2**63 - 1),
    frame_chunk(seq=-1),
    frame_chunk(seq=2**63 - 1),
    frame_chunk(frames=3),
    frame_chunk(frames=-2),
    frame_chunk(segment=-1),
    frame_chunk(segment_frame=2**40),
    frame_chunk(payload=Inline(data=b"", dtype="float32", shape=())),
    *(frame_chunk(payload=Inline(data=b"", dtype="float32", shape=shape), frames=shape[0]) for shape in SHAPES),
    Opened(**EDGE, epoch=2**62, instance="i"),
    Opened(**EDGE, epoch=1, seq=-3, instance="i"),
]


@pytest.mark.parametrize("record", BROKEN_RECORDS, ids=repr)
async def test_a_broken_record_ends_its_edge_and_is_kept(record: Record) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, "t")
    subject = SUBJECTS.feed("talker", "m", "r", EDGE["edge"])
    await bus.append(subject, encode(record), {}, expected=0)
    skipped: list[None] = []
    reader = EdgeReader(
        bus,
        subject,
        idle_s=5,
        skipped=lambda: skipped.append(None),
        carries=(FrameChunk, AudioDelta, ThinkerRows),
        **EDGE,
    )
    with pytest.raises(StageFailed) as failed:
        _ = [read async for read in reader]
    assert failed.value.code == "bad_record"
    assert len(skipped) == 1
    assert (broker.dead[0].subject, broker.dead[0].body) == (SUBJECTS.dead("talker", "m", "r"), encode(record))
    await bus.close()


@pytest.mark.parametrize(
    "record",
    [audio(sample_rate_hz=0), audio(sample_rate_hz=-1), audio(sample_rate_hz=2**40), audio(offset=-1),
     audio(offset=2**62), audio(segment=-1), audio(payload=Inline(data=b"", dtype="int16", shape=(-2, -1)))],
    ids=repr,
)  # fmt: skip
def test_sound_that_cannot_be(record: AudioDelta) -> None:
    check_record(audio(), "r", "talker-codec")
    with pytest.raises(Broken):
        check_record(record, "r", "talker-codec")


async def test_data_of_another_kind_ends_the_edge() -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    subject = SUBJECTS.feed("talker", "m", "r", EDGE["edge"])
    await bus.append(subject, encode(TextChunk(**EDGE, epoch=1, text="x")), {}, expected=0)
    with pytest.raises(StageFailed, match="does not carry TextChunk"):
        _ = [read async for read in EdgeReader(bus, subject, idle_s=5, carries=(FrameChunk,), **EDGE)]
    await bus.close()


@pytest.mark.parametrize("body", [b"\xff", encode(frame_chunk(request_id="another")), encode(BROKEN_RECORDS[-2])])
async def test_who_takes_over_a_broken_log_says_so_where_it_can(body: bytes) -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    subject = SUBJECTS.feed("talker", "m", "r", EDGE["edge"])
    await bus.append(subject, body, {}, expected=0)
    writer = EdgeWriter(bus, subject, instance="i", meta=Meta(deadline=time.time() + 9), **EDGE)
    with pytest.raises(StageFailed) as failed:
        await writer.open()
    assert failed.value.code == "bad_record"
    await bus.close()


async def test_work_whose_log_is_broken_frees_its_slot(one: Stage) -> None:
    await one.bus.append(SUBJECTS.feed("talker", "m", "r", "talker-codec"), b"\xff", {}, expected=0)
    await one.submit(encode(GOOD))
    await one.until(lambda: one.metrics.value(names.WORK_DONE, model="m", outcome="bad_record") == 1)
    await one.worker.forget("r")
    await one.serves()


def status(**fields: Any) -> EngineStatus:
    return EngineStatus(**{"engine": "m", "ready": True, "slots": 4, **fields})


def presence(**fields: Any) -> Presence:
    base: dict[str, Any] = {"service": "talker", "instance": "i", "state": "ready", "version": "0", "contract": 1}
    return Presence(**{**base, "pid": 1, "host": "h", "started": 1.0, "engines": (status(),), **fields})


@pytest.mark.parametrize(
    "absurd",
    [
        presence(instance="another"),
        presence(started=float("nan")),
        presence(locality="x" * 5000),
        *(presence(engines=(status(slots=slots),)) for slots in (-1, 5000, 2**63 - 1)),
        presence(engines=(status(queue=-1),)),
        *(presence(engines=(status(service_s=seconds),)) for seconds in (-1.0, float("nan"), float("inf"), 1e9)),
        presence(engines=(status(facts={"speed_min": float("nan")}),)),
        presence(engines=(status(voices=("v" * 5000,)),)),
        presence(engines=(status(detail="d" * 5000),)),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_absurd_presences_are_counted_and_change_nothing(absurd: Presence) -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    skipped: list[None] = []
    neighbours = Neighbours(bus, "here", skipped=lambda: skipped.append(None))
    await neighbours.start()
    subject = SUBJECTS.presence("talker", "i")
    await bus.send(subject, encode(msgspec.structs.replace(absurd, locality=absurd.locality or "elsewhere")))
    await bus.send(subject, b"\xff")
    async with asyncio.timeout(5):
        while len(skipped) < 2:
            await asyncio.sleep(0.002)
    # Had it been believed, a reader of this engine would be elsewhere.
    assert neighbours.share_memory("m")
    await bus.send(subject, encode(presence(locality="elsewhere")))
    async with asyncio.timeout(5):
        while neighbours.share_memory("m"):
            await asyncio.sleep(0.002)
    await neighbours.close()
    await bus.close()


def test_a_usual_presence_is_read() -> None:
    assert read_presence(Message(SUBJECTS.presence("talker", "i"), encode(presence()))) == presence()
    assert read_presence(Message(SUBJECTS.ctl_everyone(), encode(Ping()))) is None


@pytest.mark.parametrize(
    "control",
    [Cancel(request_id="other"), Forget(request_id="../x"), Redo(request_id="r", edge="a-b", seq=-1),
     Redo(request_id="other", edge="a-b", seq=0), Redo(request_id="r", edge="a-b", seq=2**63 - 1), Drain(instance="i")],
    ids=repr,
)  # fmt: skip
def test_control_that_says_something_else_than_its_subject(control: Any) -> None:
    with pytest.raises(Broken):
        read_control(Message(SUBJECTS.ctl_request("r"), encode(control)))


@given(st.binary(max_size=200), st.sampled_from([SUBJECTS.ctl_request("r"), "", ".", "t.v1.ctl.presence.x.i"]))
def test_any_bytes_are_control_or_refused(body: bytes, subject: str) -> None:
    with contextlib.suppress(msgspec.MsgspecError, Broken):
        read_control(Message(subject, body))
