"""Broken and forged messages on the bus: stages outlive them, lose no slot, and answer the next good request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.mutations import HEADERS, broken
from tests.support.stages import Engines, Stage, answer, stage

from omnistage.config import load_models
from omnistage.contracts import (
    AnyWork,
    AudioDelta,
    Cancel,
    ChatMessage,
    DecodeFrames,
    Drain,
    End,
    EngineStatus,
    Forget,
    FrameChunk,
    GenerateText,
    Inline,
    Opened,
    Ping,
    Presence,
    Redo,
    Sampling,
    SpeakText,
    SpeechOptions,
    TensorRef,
    TextChunk,
    TextDelta,
    encode,
)
from omnistage.errors import ConfigError, OmnistageError
from omnistage.observability import names
from omnistage.runtime.meta import Meta
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import memory_plane
from omnistage.testing.servers import running_nats
from omnistage.transport import Bus
from omnistage.transport.connect import connect
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology
from omnistage_codec.bootstrap import service as codec_service
from omnistage_talker.bootstrap import service as talker_service
from omnistage_thinker.bootstrap import service as thinker_service

pytestmark = [pytest.mark.model, pytest.mark.timeout(500)]

SERVICES = {"thinker": thinker_service, "talker": talker_service, "codec": codec_service}
ENGINES = {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"}
ROUTE = {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"}
SPEECH = {"talker": "heart", "codec": "heart-wave"}
FORGED = "forged"
SETTLE_S = 60.0

fuzz = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Loaded once; they belong to no event loop."""
    loaded = Engines(load_models([Path(__file__).parents[2] / "deploy" / "models.yaml"]))
    yield loaded
    asyncio.run(loaded.close())


def speech(request_id: str) -> SpeakText:
    return SpeakText(
        request_id=request_id, pipeline="speech", node="talker", route=SPEECH,
        speech=SpeechOptions(voice="heart", seed=3), text="Good morning.",
    )  # fmt: skip


def chat(request_id: str) -> GenerateText:
    return GenerateText(
        request_id=request_id, pipeline="omni", node="thinker", route=ROUTE,
        messages=(ChatMessage(role="user", content="Hi"),),
        sampling=Sampling(temperature=0.8, seed=5, max_tokens=6, logit_bias={5: 1.0}, stop=("x",), logprobs=2),
        speech=SpeechOptions(voice="heart", seed=3),
    )  # fmt: skip


def frames(request_id: str) -> DecodeFrames:
    return DecodeFrames(request_id=request_id, pipeline="speech", node="codec", route=SPEECH, seed=3, voice="heart")


WORK: dict[str, Callable[[str], AnyWork]] = {"thinker": chat, "talker": speech, "codec": frames}


def records(request_id: str, edge: str) -> list[bytes]:
    """What a log of an edge may hold."""
    base: dict[str, Any] = {"request_id": request_id, "edge": edge, "epoch": 1}
    inline = Inline(data=bytes(8), dtype="float32", shape=(2, 1))
    ref = TensorRef(
        place="memory", id="0-0", offset=4096, dtype="float32", shape=(2, 1), nbytes=8, generation=2, checksum=1,
        lease=time.time() + 60,
    )  # fmt: skip
    made = [
        Opened(**base, instance="i"),
        End(**base, count=3),
        FrameChunk(**base, seq=0, payload=inline, frames=2),
        FrameChunk(**base, seq=0, payload=ref, frames=2),
        AudioDelta(**base, seq=0, payload=inline, sample_rate_hz=24_000, offset=0),
        TextChunk(**base, seq=0, text="a"),
        TextDelta(**base, seq=0, text="a", token_ids=(1, 2)),
    ]
    return [encode(record) for record in made]


def controls(request_id: str, instance: str) -> list[bytes]:
    """What is sent on control subjects."""
    status = EngineStatus(engine="heart", ready=True, slots=8, service_s=1.0, voices=("heart",), facts={"x": 1.0})
    presence = Presence(
        service="talker", instance=instance, state="ready", version="0", contract=1, pid=1, host="h", started=1.0,
        engines=(status,), running=(request_id,),
    )  # fmt: skip
    made = [
        Cancel(request_id=request_id),
        Forget(request_id=request_id),
        Redo(request_id=request_id, edge="talker-codec", seq=0),
        Ping(),
        Drain(instance=f"not-{instance}"),
        presence,
    ]
    return [encode(control) for control in made]


class Deployment:
    """Every stage once."""

    def __init__(self, bus: Bus, stages: dict[str, Stage], plane: Any) -> None:
        self.bus = bus
        self.stages = stages
        self.plane = plane
        self.number = 0

    def new_id(self) -> str:
        self.number += 1
        return f"{FORGED}-{self.number}"

    async def put_work(self, service: str, body: bytes, headers: dict[str, str] | None = None) -> str:
        """Lay a body into a stage's queue as it is; returns the request id that the subject names."""
        request_id = self.new_id()
        given = {**Meta(deadline=time.time() + 30).to_headers(), **(headers or {})}
        await self.bus.publish_work(self.bus.subjects.work(service, ENGINES[service], request_id), body, given)
        return request_id

    async def append(self, subject: str, body: bytes) -> None:
        """Lay a body into a log as it is, after whatever it holds."""
        while True:
            held = await self.bus.read(subject)
            try:
                await self.bus.append(subject, body, {}, expected=held[-1].sequence if held else 0)
            except OmnistageError as error:
                if error.code != "fenced":
                    raise
                continue
            return

    async def settle(self) -> None:
        """Everything that was forged is told to be over, and nothing runs or waits any more."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            for running in self.stages.values():
                for request_id in running.worker.held:
                    await running.worker.forget(request_id)
            if not any(running.worker.held for running in self.stages.values()) and not await self.waiting():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"still there: {[(n, s.worker.held) for n, s in self.stages.items()]}")

    async def waiting(self) -> int:
        return sum([await (await self.bus.work_queue(name, ENGINES[name])).pending() for name in self.stages])

    async def proves_well(self) -> None:
        """Every slot of every stage is free, no part of a stage has failed, and a good request is answered."""
        await self.settle()
        for name, running in self.stages.items():
            assert running.worker.failure is None, (name, running.worker.failure)
            for hosted in running.hosted:
                # One is reserved for the next item.
                assert hosted.slots.free == hosted.spec.slots - 1, name
        heard = await answer(self.bus, self.plane, speech(self.new_id()))
        assert len(heard.samples) > 10_000
        text = await answer(self.bus, self.plane, chat(self.new_id()))
        assert text.text

    def total(self, metric: names.Metric) -> float:
        """Over all stages."""
        return sum(running.metrics.total(metric) for running in self.stages.values())


Deploy = Callable[[], Any]


@asynccontextmanager
async def deployed(engines: Engines, kind: str) -> AsyncIterator[Deployment]:
    """Every stage once, on a broker in memory or a real one."""
    space = MemorySpace()
    async with AsyncExitStack() as stack:
        if kind == "memory":
            broker = MemoryBroker()

            async def join() -> Bus:
                return MemoryBus(broker, "t")
        else:
            server = stack.enter_context(running_nats())

            async def join() -> Bus:
                bus = await connect(server.url, "t", name="test")
                stack.push_async_callback(bus.close)
                return bus

        bus = await join()
        await bus.ensure(Topology.of("t", ((spec.service, key) for key, spec in engines.models.engines.items())))
        stages = {
            name: await stack.enter_async_context(
                stage(build(), engines, await join(), memory_plane(space, inline_limit_bytes=1024), f"{name}-1")
            )
            for name, build in SERVICES.items()
        }
        yield Deployment(bus, stages, memory_plane(space, inline_limit_bytes=1024))


KINDS = pytest.mark.parametrize("kind", ["memory", "jetstream"])


def sprayed(of: Callable[[str], list[bytes]]) -> Any:
    """Lists of (a stage, a broken body, a forged header or none)."""
    header = st.one_of(st.none(), st.none(), st.sampled_from(HEADERS))
    return st.lists(
        st.sampled_from(list(SERVICES)).flatmap(lambda name: st.tuples(st.just(name), broken(of(name)), header)),
        min_size=20,
        max_size=25,
    )


@KINDS
@fuzz
@given(sprayed(lambda name: [encode(build("forged-1")) for build in (WORK[name], *WORK.values())]))
async def test_broken_work(engines: Engines, kind: str, spray: list[Any]) -> None:
    async with deployed(engines, kind) as system:
        for service, body, header in spray:
            await system.put_work(service, body, dict([header]) if header else None)
        await system.proves_well()
        # Each was either run or put aside; the two good requests were run by every stage of theirs.
        ended = system.total(names.POISONED) + system.total(names.WORK_DONE)
        assert ended >= len(spray)
        for running in system.stages.values():
            for engine in ENGINES.values():
                assert running.metrics.value(names.WORK_DONE, model=engine, outcome="internal_error") == 0


@KINDS
@fuzz
@given(st.lists(broken([*records("forged-1", "talker-codec"), *records("forged-1", "thinker-talker")]), min_size=12))
async def test_broken_records_between_stages(engines: Engines, kind: str, spray: list[bytes]) -> None:
    """Each in the log of a request of its own, whose reader waits for it."""
    async with deployed(engines, kind) as system:
        for number, body in enumerate(spray[:20], start=1):
            service, edge, source, build = (
                ("codec", "talker-codec", "talker", frames),
                ("talker", "thinker-talker", "thinker", lambda name: speech_of_text(name)),
            )[number % 2]
            request_id = await system.put_work(service, encode(build(f"{FORGED}-{system.number + 1}")))
            subject = system.bus.subjects.feed(source, ENGINES[source], request_id, edge)
            await system.append(subject, body.replace(b"forged-1", request_id.encode()))
        await system.proves_well()


def speech_of_text(request_id: str) -> SpeakText:
    """The talker's work whose text comes over the edge."""
    return SpeakText(
        request_id=request_id, pipeline="omni", node="talker", route=ROUTE, speech=SpeechOptions(voice="heart", seed=3)
    )


@KINDS
@fuzz
@given(st.lists(broken([*records("forged-1", "codec-gateway"), *records("forged-1", "talker-codec")]), min_size=12))
async def test_what_a_new_holder_finds_in_its_own_logs(engines: Engines, kind: str, spray: list[bytes]) -> None:
    """The logs that a stage reads when it takes a request over hold forged records."""
    async with deployed(engines, kind) as system:
        for number, body in enumerate(spray[:20], start=1):
            service, edge = (("codec", "codec-gateway"), ("talker", "talker-codec"))[number % 2]
            request_id = f"{FORGED}-{system.number + 1}"
            build = system.bus.subjects.out if edge.endswith("gateway") else system.bus.subjects.feed
            subject = build(service, ENGINES[service], request_id, edge)
            await system.append(subject, body.replace(b"forged-1", request_id.encode()))
            assert await system.put_work(service, encode(WORK[service](request_id))) == request_id
        await system.proves_well()


@KINDS
@fuzz
@given(st.lists(broken(controls("forged-1", "talker-1")), min_size=40, max_size=60))
async def test_broken_control(engines: Engines, kind: str, spray: list[bytes]) -> None:
    async with deployed(engines, kind) as system:
        subjects = system.bus.subjects
        targets = (
            subjects.ctl_request("forged-1"), subjects.ctl_instance("talker-1"), subjects.ctl_everyone(),
            subjects.presence("talker", "talker-1"), subjects.ctl_request("another"),
        )  # fmt: skip
        for number, body in enumerate(spray):
            await system.bus.send(targets[number % len(targets)], body)
        await system.proves_well()


@KINDS
async def test_what_is_put_aside_is_counted_and_kept(engines: Engines, kind: str) -> None:
    """Of each kind one: it is in class dead with its reason, and the counters tell."""
    good = speech("x")
    kinds: dict[str, bytes] = {
        "bytes": b"\xff\x00 no message",
        "tag": encode(good).replace(b"speak_text", b"sing_texts"),
        "kind": encode(chat("x")),
        "request": encode(speech("another")),
        "pipeline": encode(good).replace(b"speech", b"speecx", 1),
        "node": encode(SpeakText(**{**_fields(good), "node": "codec"})),
        "route": encode(SpeakText(**{**_fields(good), "route": {"talker": "heart", "codec": "../../x"}})),
        "engine": encode(SpeakText(**{**_fields(good), "route": {"talker": "other", "codec": "heart-wave"}})),
        "stranger": encode(SpeakText(**{**_fields(good), "route": {**SPEECH, "moon": "heart"}})),
        "deep": b"\x91" * 100_000 + b"\xc0",
        "large": b"x" * 250_000,
    }
    async with deployed(engines, kind) as system:
        for body in kinds.values():
            await system.put_work("talker", body)
        await system.settle()
        metrics = system.stages["talker"].metrics
        assert metrics.value(names.SKIPPED_MESSAGES, via="work") == len(kinds)
        assert metrics.value(names.POISONED, model="heart") == len(kinds)
        await system.proves_well()


def _fields(work: SpeakText) -> dict[str, Any]:
    return {name: getattr(work, name) for name in work.__struct_fields__}


@KINDS
async def test_claims_that_others_touch(engines: Engines, kind: str) -> None:
    """A stranger acknowledges what stages hold and gives it back once, while they work: the request completes."""
    async with deployed(engines, kind) as system:
        meddled = 0

        async def meddle(_record: Any) -> None:
            nonlocal meddled
            for running in system.stages.values():
                for held in running.worker._holdings:
                    await (held.claim.ack() if meddled else system.bus.give_back(held.claim.token))
                    meddled += 1

        heard = await answer(system.bus, system.plane, speech("meddled"), on_record=meddle)
        assert meddled > 2
        assert len(heard.samples) > 10_000
        await system.proves_well()


@KINDS
@pytest.mark.parametrize("token", ["", "x", "$JS.API.STREAM.DELETE.T_WORK", "t.v1.ctl.request.all.x"])
async def test_only_claims_can_be_given_back(kind: str, token: str, engines: Engines) -> None:
    """The claim book is on the broker: what lies in it must not make us publish anywhere else."""
    async with deployed(engines, kind) as system:
        if kind == "jetstream":
            with pytest.raises(ConfigError, match="no token"):
                await system.bus.give_back(token)
