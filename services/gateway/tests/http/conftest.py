"""A dispatcher that plays what a test says, and the application over it: in process and behind a real server."""

from __future__ import annotations

import asyncio
import io
import socket
import wave
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import uvicorn
from fastapi import FastAPI

from omnistage.config import ModelsFile, ModelSpec, load_models
from omnistage.contracts import (
    AnyWork,
    EncodeReference,
    GenerateText,
    SpeakText,
    SpeechAbilities,
    TextDelta,
    TextDone,
    TokenLogprob,
)
from omnistage.errors import OmnistageError
from omnistage.observability import Metrics
from omnistage_gateway.app import create_app
from omnistage_gateway.audio import EncoderPool
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.dispatch.interface import AudioPiece, Event, Plan, Running, VoiceFeatures
from omnistage_gateway.transcripts import MemoryTranscripts

RATE_HZ = 24_000
WORDS = ("The", " capital", " of", " France", " is", " Paris", ".")
SECONDS_PER_CHAR = 0.05
CODES = np.arange(160, dtype=np.int32).reshape(10, 16)
EMBEDDING = np.arange(1024, dtype=np.float32) / 1024

Script = Callable[[AnyWork], AsyncIterator[Event]]


def tone(seconds: float, hz: float = 220.0) -> Any:
    return (np.sin(np.arange(round(seconds * RATE_HZ)) * 2 * np.pi * hz / RATE_HZ) * 9000).astype(np.int16)


def text_delta(text: str, token: int = 0, logprobs: tuple[TokenLogprob, ...] = ()) -> TextDelta:
    return TextDelta(request_id="r", edge="thinker-gateway", epoch=1, text=text, token_ids=(token,), logprobs=logprobs)


def text_done(reason: Any = "stop", tokens: int = len(WORDS)) -> TextDone:
    return TextDone(
        request_id="r",
        edge="thinker-gateway",
        epoch=1,
        finish_reason=reason,
        prompt_tokens=11,
        completion_tokens=tokens,
        cached_tokens=3,
    )


async def spoken(text: str, speed: float, seed: int) -> AsyncIterator[Event]:
    """A tone as long as the text, in uneven pieces; its pitch depends on the seed."""
    samples = tone(len(text) * SECONDS_PER_CHAR / speed, 200 + seed % 50)
    step = 3_001
    for start in range(0, len(samples), step):
        await asyncio.sleep(0)
        yield AudioPiece(samples[start : start + step], RATE_HZ, text=text if start == 0 else "")


async def default_script(work: AnyWork) -> AsyncIterator[Event]:
    if isinstance(work, SpeakText):
        async for piece in spoken(work.text or "", work.speech.speed, work.speech.seed):
            yield piece
        return
    if isinstance(work, EncodeReference):
        yield VoiceFeatures(CODES, EMBEDDING)
        return
    assert isinstance(work, GenerateText)
    for number, word in enumerate(WORDS):
        logprobs: tuple[TokenLogprob, ...] = ()
        if work.sampling.logprobs is not None:
            top = tuple(
                TokenLogprob(token=f"t{i}", data=b"t%d" % i, logprob=-1.0 - i) for i in range(work.sampling.logprobs)
            )
            logprobs = (TokenLogprob(token=word, data=word.encode(), logprob=-0.5, top=top),)
        yield text_delta(word, number, logprobs)
        if work.speech is not None:
            async for piece in spoken(word, work.speech.speed, work.speech.seed):
                yield piece
    yield text_done()


class FakeRunning:
    def __init__(self, request_id: str, events: AsyncIterator[Event], fake: FakeDispatcher) -> None:
        self._request_id = request_id
        self._events = events
        self._fake = fake

    @property
    def request_id(self) -> str:
        return self._request_id

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._events:
            yield event
        self._fake.completed.append(self._request_id)


@dataclass
class FakeDispatcher:
    """Implements the dispatcher's protocol.

    Attributes:
        script: what a request's events are.
        door: raised instead of admitting.
        line: waited for before admitting.
        works, plans: what was asked for, in order.
        views: what engines announce; those that are not here announce `speeds` alone.
        completed, left: ids whose events all came, and whose context was left.
    """

    models: ModelsFile
    script: Script = default_script
    door: OmnistageError | None = None
    line: asyncio.Event | None = None
    works: list[AnyWork] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    waiting: int = 0
    active: int = 0
    unready: str = ""
    speeds: dict[str, float] = field(default_factory=dict)
    views: dict[str, EngineView] = field(default_factory=dict)

    @asynccontextmanager
    async def run(self, plan: Plan, request_id: str) -> AsyncIterator[Running]:
        if self.door is not None:
            raise self.door
        self.waiting += 1
        try:
            if self.line is not None:
                await self.line.wait()
        finally:
            self.waiting -= 1
        node = plan.pipeline.entry().destination
        route = {
            name: engine for name, engine in plan.spec.nodes.items() if name in {n.name for n in plan.pipeline.nodes}
        }
        work = plan.build(request_id, node, route)
        self.plans.append(plan)
        self.works.append(work)
        self.active += 1
        try:
            yield FakeRunning(request_id, self.script(work), self)
        finally:
            self.active -= 1
            self.left.append(request_id)

    def offered(self) -> Mapping[str, ModelSpec]:
        return {key: spec for key, spec in self.models.models.items() if key != self.unready}

    def engine(self, key: str) -> EngineView:
        return self.views.get(key, EngineView(facts=self.speeds))

    def ready(self) -> tuple[bool, str]:
        return not self.unready, f"{self.unready} is loading" if self.unready else ""

    @property
    def idle(self) -> bool:
        return self.active == self.waiting == 0


@dataclass
class Stand:
    """Everything of one test."""

    fake: FakeDispatcher
    app: FastAPI
    pool: EncoderPool
    metrics: Metrics
    transcripts: MemoryTranscripts


@pytest.fixture
def events() -> dict[str, Callable[..., Any]]:
    """Makers of events for scripts."""
    return {"text": text_delta, "done": text_done, "tone": tone}


@pytest.fixture
def make_stand() -> Callable[..., Stand]:
    def make(**options: Any) -> Stand:
        models = options.pop("models", None) or load_models()
        fake = FakeDispatcher(models)
        pool = EncoderPool()
        metrics = Metrics("gateway", "test")
        transcripts = options.pop("transcripts", None) or MemoryTranscripts()
        app = create_app(
            dispatcher=fake, models=models, metrics=metrics, encoders=pool, transcripts=transcripts, **options
        )
        return Stand(fake, app, pool, metrics, transcripts)

    return make


@pytest.fixture
def stand(make_stand: Callable[..., Stand]) -> Stand:
    return make_stand()


@asynccontextmanager
async def serving(app: FastAPI, **options: Any) -> AsyncIterator[str]:
    """The application behind uvicorn on a free port; gives the base URL."""
    # asyncio switches Nagle's algorithm off only on sockets that name their protocol; with it on, the second piece of
    # an answer would wait 40 ms for the first one's acknowledgement.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5, **options
        )
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
            assert not task.done()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@pytest.fixture
def serve() -> Any:
    return serving


@pytest.fixture
async def http(stand: Stand) -> AsyncIterator[httpx.AsyncClient]:
    """In process, without a socket."""
    transport = httpx.ASGITransport(stand.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client
    stand.pool.shutdown()
    assert stand.pool.open == 0
    assert stand.fake.idle


@pytest.fixture
async def url(stand: Stand) -> AsyncIterator[str]:
    """A real server."""
    async with serving(stand.app) as base:
        yield base
    assert stand.pool.open == 0
    assert stand.fake.idle


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official SDK."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


ALWAYS = (
    *("task_type", "language", "non_streaming_mode", "max_new_tokens", "initial_codec_chunk_frames", "temperature"),
    *("top_k", "top_p", "repetition_penalty", "subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)
CLONING = ("ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding")
ABLE = {
    "named": (("vivian", "ryan"), ("custom_voice",), (*ALWAYS, "instructions")),
    "designed": (("default",), ("voice_design",), (*ALWAYS, "instructions")),
    "cloned": (("default",), ("base",), (*ALWAYS, *CLONING)),
}


def able_models() -> ModelsFile:
    """The default models, and one for each thing that may make a voice."""
    data = load_models().model_dump()
    for name in ABLE:
        data["engines"][f"{name}-talker"] = {"service": "talker", "engine": "qwen3_tts", "checkpoint": "x"}
        data["engines"][f"{name}-codec"] = {"service": "codec", "engine": "qwen3_tts", "checkpoint": "x"}
        nodes = {"talker": f"{name}-talker", "codec": f"{name}-codec"}
        data["models"][name] = {"pipeline": "speech", "nodes": nodes}
    return ModelsFile.model_validate(data)


@pytest.fixture
def able(make_stand: Callable[..., Stand]) -> Callable[..., Stand]:
    """Makes stands whose models clone, design and know voices by name."""

    def make(**options: Any) -> Stand:
        made = make_stand(models=able_models(), **options)
        for name, (voices, tasks, accepts) in ABLE.items():
            speech = SpeechAbilities(tasks=tasks, languages=("en", "zh"), accepts=accepts)
            made.fake.views[f"{name}-talker"] = EngineView(slots=4, voices=voices, speech=speech)
        return made

    return make


def wav(seconds: float = 2.0, rate_hz: int = RATE_HZ, channels: int = 1) -> bytes:
    """A tone in a file."""
    buffer = io.BytesIO()
    samples = np.rint(np.sin(np.arange(round(seconds * rate_hz)) * 0.05) * 9000).astype("<i2")
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.repeat(samples, channels).tobytes())
    return buffer.getvalue()


@pytest.fixture
def make_wav() -> Callable[..., bytes]:
    return wav


@pytest.fixture
def features() -> tuple[Any, Any]:
    """What every recording is to the fake encoder: codes and embedding."""
    return CODES, EMBEDDING
