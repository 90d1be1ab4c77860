"""A gateway's dispatcher on a bus, with scripted stages behind it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from omnistage.config import ModelsFile
from omnistage.contracts import (
    AnyWork,
    AudioDelta,
    Cancel,
    ChatMessage,
    DecodeFrames,
    End,
    EngineStatus,
    Forget,
    FrameChunk,
    GenerateText,
    Opened,
    Presence,
    Record,
    Sampling,
    SpeakText,
    SpeechOptions,
    TextChunk,
    TextDelta,
    TextDone,
    decode_control,
    decode_work,
    encode,
)
from omnistage.errors import Fenced
from omnistage.pipelines import GATEWAY, pipeline
from omnistage.runtime.context import REQUESTS_BUCKET
from omnistage.runtime.edges import EdgeReader, EdgeWriter
from omnistage.runtime.meta import Meta
from omnistage.runtime.tasks import TaskBag
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import TensorPlane, memory_plane
from omnistage.transport import Bus, Message
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage_gateway.dispatch.fleet import Fleet
from omnistage_gateway.dispatch.hooks import Hooks
from omnistage_gateway.dispatch.interface import AudioPiece, Event, Plan
from omnistage_gateway.dispatch.line import LineLimits
from omnistage_gateway.dispatch.runner import BusDispatcher, DispatchLimits

RATE_HZ = 24000
MODELS = ModelsFile.model_validate(
    {
        "version": 1,
        "engines": {
            "llm": {"service": "thinker", "engine": "torch"},
            "heart": {"service": "talker", "engine": "hibari"},
            "wave": {"service": "codec", "engine": "hibari"},
        },
        "models": {
            "voice": {"pipeline": "speech", "nodes": {"talker": "heart", "codec": "wave"}},
            "chat": {"pipeline": "omni", "nodes": {"thinker": "llm", "talker": "heart", "codec": "wave"}},
        },
    }
)
SERVICE = {"llm": "thinker", "heart": "talker", "wave": "codec"}

Script = Callable[["Stage", Any], Awaitable[None]]


class Stage:
    """What a script holds: one claimed work item, at one instance."""

    def __init__(self, world: World, engine: str, work: AnyWork, headers: Mapping[str, str]) -> None:
        self.world = world
        self.engine = engine
        self.work = work
        self.headers = headers
        self.meta = Meta.from_headers(headers)

    def subject(self, edge: str) -> str:
        """Log of an edge of this request."""
        source, _, destination = edge.partition("-")
        build = self.world.bus.subjects.out if destination == GATEWAY else self.world.bus.subjects.feed
        return build(SERVICE[self.work.route[source]], self.work.route[source], self.work.request_id, edge)

    async def open(self, edge: str, redo_from: int | None = None) -> EdgeWriter:
        writer = EdgeWriter(
            self.world.bus, self.subject(edge), request_id=self.work.request_id, edge=edge, instance="i", meta=self.meta
        )
        await writer.open(redo_from)
        return writer

    async def write(self, edge: str, *records: Record) -> None:
        """Append records as they are, whatever rules they break."""
        for record in records:
            await self.world.append(self.subject(edge), record)

    def records(self, edge: str) -> Raw:
        return Raw(self.work.request_id, edge)

    async def start(self, kind: type[Any], node: str, **fields: Any) -> None:
        """Publish the next stage's work."""
        work = kind(
            request_id=self.work.request_id,
            pipeline=self.work.pipeline,
            node=node,
            route=self.work.route,
            **fields,
        )
        key = self.work.route[node]
        subject = self.world.bus.subjects.work(SERVICE[key], key, self.work.request_id)
        await self.world.bus.publish_work(subject, encode(work), self.meta.to_headers())

    async def audio(self, start: int, stop: int) -> dict[str, Any]:
        """Fields of an AudioDelta with the samples start to stop, each its own number."""
        payload = await self.world.plane.pack(ramp(start, stop), request_id=self.work.request_id, lease_s=60.0)
        return {"payload": payload, "sample_rate_hz": RATE_HZ, "offset": start}


class Raw:
    """Records with the fields that a script chooses."""

    def __init__(self, request_id: str, edge: str) -> None:
        self._base: dict[str, Any] = {"request_id": request_id, "edge": edge}

    def opened(self, epoch: int = 1, seq: int = 0) -> Opened:
        return Opened(**self._base, epoch=epoch, seq=seq, instance="i")

    def end(self, count: int, epoch: int = 1) -> End:
        return End(**self._base, epoch=epoch, seq=count, count=count)

    def text(self, text: str, seq: int, epoch: int = 1) -> TextDelta:
        return TextDelta(**self._base, epoch=epoch, seq=seq, text=text)

    def audio(self, fields: Mapping[str, Any], seq: int, epoch: int = 1) -> AudioDelta:
        return AudioDelta(**self._base, epoch=epoch, seq=seq, **fields)


class World:
    """Bus, the stages' plane, scripted stages and one dispatcher.

    A cancelled request's blocks are given back by the stages, those of a finished one only by their reader.
    """

    def __init__(self, bus: Bus, dispatcher: BusDispatcher, plane: TensorPlane, log: list[tuple[Any, ...]]) -> None:
        self.bus = bus
        self.dispatcher = dispatcher
        self.plane = plane
        self.hooked = log
        self.controls: list[Any] = []
        self.claimed: list[str] = []
        self.finished: list[str] = []
        self._running: dict[str, list[asyncio.Task[None]]] = {}
        self.faults: list[BaseException] = []
        self._tasks = TaskBag("scripts", on_error=self.faults.append)
        self._ids = itertools.count(1)

    @staticmethod
    def speak(text: str = "abc", **fields: Any) -> Plan:
        """A plan that has a text spoken."""
        return speak(text, **fields)

    @staticmethod
    def chat(text: str, way: str = "omni", **fields: Any) -> Plan:
        """A plan that has a text answered; "omni" with speech, "text" without."""
        return chat(text, way, **fields)

    async def serve_all(self) -> None:
        """Stages that do what they should."""
        for engine, script in (("llm", thinker), ("heart", talker), ("wave", codec)):
            await self.serve(engine, script)

    async def announce(self, slots: int = 4, **fields: Any) -> None:
        """One instance of every service says that it is ready."""
        for engine, service in SERVICE.items():
            status = EngineStatus(engine=engine, ready=True, slots=slots)
            said: dict[str, Any] = {"service": service, "instance": f"{service}-1", "state": "ready", "version": "0"}
            said |= {"contract": 1, "pid": 1, "host": "h", "started": 0.0, "engines": (status,)} | fields
            presence = Presence(**said)
            await self.bus.send(self.bus.subjects.presence(service, presence.instance), encode(presence))
        while not fields and not self.dispatcher.ready()[0]:
            await asyncio.sleep(0.001)

    async def append(self, subject: str, record: Record) -> None:
        existing = await self.bus.read(subject)
        await self.bus.append(subject, encode(record), {}, expected=existing[-1].sequence if existing else 0)

    async def serve(self, engine: str, script: Script) -> None:
        """Begin to claim an engine's work and run a script for each item, as an instance would."""
        queue = await self.bus.work_queue(SERVICE[engine], engine)

        async def loop() -> None:
            while True:
                claim = await queue.claim()
                work = decode_work(claim.message.body)
                stage = Stage(self, engine, work, claim.message.headers)
                self.claimed.append(f"{engine}:{work.request_id}")
                task = self._tasks.spawn(self._run(script, stage, claim))
                self._running.setdefault(work.request_id, []).append(task)

        self._tasks.spawn(loop())

    async def _run(self, script: Script, stage: Stage, claim: Any) -> None:
        tombstones = await self.bus.key_value(REQUESTS_BUCKET)
        try:
            if await tombstones.get(stage.work.request_id) is None:
                await script(stage, stage.work)
                self.finished.append(f"{stage.engine}:{stage.work.request_id}")
        except Fenced:
            pass
        finally:
            await asyncio.shield(claim.ack())

    async def heard(self, message: Message) -> None:
        control = decode_control(message.body)
        self.controls.append(control)
        if isinstance(control, Cancel):
            for task in self._running.pop(control.request_id, []):
                task.cancel()
            await self.plane.forget(control.request_id)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[World]:
        subscription = await self.bus.subscribe(self.bus.subjects.ctl_requests(), self.heard)
        try:
            yield self
        finally:
            await self._tasks.close()
            await subscription.close()
        assert not self.faults, "a script failed"

    def run(self, plan: Plan, request_id: str = "") -> Any:
        return self.dispatcher.run(plan, request_id or f"some-{next(self._ids)}")

    async def collect(self, plan: Plan, request_id: str = "") -> list[Event]:
        """Run a plan to its end; everything that it delivers."""
        async with self.run(plan, request_id) as running:
            return [event async for event in running.events()]

    async def tombstone(self, request_id: str) -> bytes | None:
        entry = await (await self.bus.key_value(REQUESTS_BUCKET)).get(request_id)
        return None if entry is None else entry[0]

    def told(self, kind: type[Cancel] | type[Forget]) -> list[str]:
        return [control.request_id for control in self.controls if isinstance(control, kind)]


class MemoryWorld(World):
    """On a MemoryBus, whose contents can be looked at."""

    broker: MemoryBroker

    def left(self) -> list[str]:
        """Subjects of every work item and log record that is still there."""
        items = [subject for work in self.broker.work.values() for subject in work.items]
        return items + [subject for logs in self.broker.logs.values() for subject in logs.records]

    def followed(self) -> list[str]:
        return [subject for logs in self.broker.logs.values() for subject in logs.followers]


def ramp(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Samples that name their own position."""
    return (np.arange(start, stop) % 32768).astype(np.int16)


def heard_samples(events: list[Event]) -> np.ndarray[Any, np.dtype[np.int16]]:
    pieces = [event.samples for event in events if isinstance(event, AudioPiece)]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int16)


def heard_text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def talker(stage: Stage, work: SpeakText) -> None:
    """Starts the codec and hands it its text (or what comes over the edge) as frames: one per character."""
    writer = await stage.open("talker-codec")
    await stage.start(DecodeFrames, "codec")
    if work.text is not None:
        for char in work.text:
            payload = await stage.world.plane.pack(np.zeros((1, 1), np.float32), request_id=char, lease_s=60.0)
            await writer.send(FrameChunk, payload=payload, frames=1)
    else:
        async for chunk in await follow(stage, "thinker-talker"):
            assert isinstance(chunk, TextChunk)
            payload = await stage.world.plane.pack(
                np.zeros((len(chunk.text), 1), np.float32), request_id="x", lease_s=60.0
            )
            await writer.send(FrameChunk, payload=payload, frames=len(chunk.text))
    await writer.finish()


async def codec(stage: Stage, work: DecodeFrames) -> None:
    """10 000 samples for each frame, which is more than travels inside a message."""
    writer = await stage.open("codec-gateway")
    position = 0
    async for chunk in await follow(stage, "talker-codec"):
        assert isinstance(chunk, FrameChunk)
        for _ in range(chunk.frames):
            await writer.send(AudioDelta, **await stage.audio(position, position + 10_000))
            position += 10_000
    await writer.finish()


async def thinker(stage: Stage, work: GenerateText) -> None:
    """Answers with the last message, word by word, to the gateway and (if it is to be spoken) to the talker."""
    out = await stage.open("thinker-gateway")
    spoken = None
    if work.speech is not None:
        spoken = await stage.open("thinker-talker")
        await stage.start(SpeakText, "talker", speech=work.speech)
    words = work.messages[-1].content.split()
    for word in words:
        await out.send(TextDelta, text=word + " ")
        if spoken is not None:
            await spoken.send(TextChunk, text=word)
    await out.send(TextDone, finish_reason="stop", prompt_tokens=1, completion_tokens=len(words))
    await out.finish()
    if spoken is not None:
        await spoken.finish()


async def follow(stage: Stage, edge: str) -> Any:
    reader = EdgeReader(stage.world.bus, stage.subject(edge), request_id=stage.work.request_id, edge=edge, idle_s=60.0)
    await reader.open()
    return reader


def speak(text: str = "abc", **fields: Any) -> Plan:
    """A plan that has a text spoken."""
    spec = MODELS.models["voice"]

    def build(request_id: str, node: str, route: Mapping[str, str]) -> AnyWork:
        return SpeakText(
            request_id=request_id, pipeline="speech", node=node, route=dict(route), text=text,
            speech=SpeechOptions(voice="heart"),
        )  # fmt: skip

    return Plan("voice", spec, pipeline("speech"), build, **fields)


def chat(text: str, way: str = "omni", **fields: Any) -> Plan:
    """A plan that has a text answered; "omni" with speech, "text" without."""
    spec = MODELS.models["chat"]

    def build(request_id: str, node: str, route: Mapping[str, str]) -> AnyWork:
        return GenerateText(
            request_id=request_id, pipeline=way, node=node, route=dict(route),
            messages=(ChatMessage(role="user", content=text),), sampling=Sampling(),
            speech=SpeechOptions(voice="heart") if way == "omni" else None,
        )  # fmt: skip

    return Plan("chat", spec, pipeline(way), build, **fields)


def recording_hooks() -> tuple[Hooks, list[tuple[Any, ...]]]:
    log: list[tuple[Any, ...]] = []

    def record(name: str) -> Callable[..., None]:
        return lambda *values: log.append((name, *values))

    names = ("refused", "waited", "first_event", "finished", "republished", "redone", "abandoned", "skipped", "hop")
    return Hooks(**{name: record(name) for name in names}), log


def limits(**fields: Any) -> DispatchLimits:
    line = {name: fields.pop(name) for name in ("total", "per_tenant", "grace_s") if name in fields}
    chosen: dict[str, Any] = {"line": LineLimits(**line), "late_s": 0.02, "clear_s": 2.0, "redo_wait_s": 0.1} | fields
    return DispatchLimits(**chosen)


def two_planes() -> tuple[TensorPlane, TensorPlane]:
    """The stages' and the gateway's, as in two processes of one host."""
    space = MemorySpace()
    return memory_plane(space), memory_plane(space)


@asynccontextmanager
async def live(world: World, slots: int) -> AsyncIterator[None]:
    """Run a world's dispatcher and scripts."""
    async with world.living():
        try:
            await world.dispatcher.start()
            await world.announce(slots)
            yield
        finally:
            await world.dispatcher.close()


@asynccontextmanager
async def memory_world(slots: int = 4, **fields: Any) -> AsyncIterator[MemoryWorld]:
    """Everything but the stages' scripts, on a fresh MemoryBus."""
    broker = MemoryBroker()
    bus = MemoryBus(broker, "test")
    plane, readers = two_planes()
    hooks, log = recording_hooks()
    dispatcher = BusDispatcher(bus, readers, Fleet(bus, MODELS, "gw-1"), limits=limits(**fields), hooks=hooks)
    world = MemoryWorld(bus, dispatcher, plane, log)
    world.broker = broker
    try:
        async with live(world, slots):
            yield world
    finally:
        await bus.close()


@asynccontextmanager
async def world_on(bus: Bus, slots: int = 4, **fields: Any) -> AsyncIterator[World]:
    """The same on a bus that the test has opened."""
    hooks, log = recording_hooks()
    plane, readers = two_planes()
    dispatcher = BusDispatcher(bus, readers, Fleet(bus, MODELS, "gw-1"), limits=limits(**fields), hooks=hooks)
    world = World(bus, dispatcher, plane, log)
    async with live(world, slots):
        yield world


@pytest.fixture
def make_world() -> Callable[..., Any]:
    """`memory_world`, for tests that set limits."""
    return memory_world


@pytest.fixture
def make_world_on() -> Callable[..., Any]:
    return world_on


@pytest.fixture
async def world() -> AsyncIterator[MemoryWorld]:
    """With default limits, four slots per engine and no scripts yet."""
    async with memory_world() as made:
        yield made


@pytest.fixture
async def speech(world: MemoryWorld) -> MemoryWorld:
    """With stages that speak: 10 000 samples for each character."""
    await world.serve("heart", talker)
    await world.serve("wave", codec)
    return world


@pytest.fixture
async def omni(speech: MemoryWorld) -> MemoryWorld:
    """With stages that answer and speak."""
    await speech.serve("llm", thinker)
    return speech
