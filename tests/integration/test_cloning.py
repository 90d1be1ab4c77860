"""A voice that a client brings along, over HTTP through gateways, talker and codec: the same voice by every way."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from services.talker.tests.checkpoints import make_checkpoint
from tests.support.checkpoints import tiny_cloning_codec
from tests.support.stages import PATIENCE_S, Engines, Stage, answer, stage

from omnistage.config import ModelsFile
from omnistage.contracts import CONTRACT_VERSION, Inline, Presence, SpeakText, SpeechOptions, VoiceReference, encode
from omnistage.observability import Metrics
from omnistage.tensors.memory import MemorySpace
from omnistage.tensors.plane import memory_plane
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage.transport.topology import Topology
from omnistage_codec.bootstrap import service as codec_service
from omnistage_gateway.app import create_app
from omnistage_gateway.audio import EncoderPool
from omnistage_gateway.dispatch.fleet import Fleet
from omnistage_gateway.dispatch.runner import BusDispatcher
from omnistage_gateway.voices import VoiceLibrary
from omnistage_talker.bootstrap import service as talker_service

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
SERVICES = {"talker": talker_service, "codec": codec_service}
TASKS = {"named": "custom_voice", "designed": "voice_design", "cloned": "base"}
INPUT = "The weather is nice today."
SAID = "What it says."
FRAMES = 12
RECORDING = (np.random.default_rng(5).standard_normal(36_000) * 3000).astype(np.int16)


def wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(RECORDING.astype("<i2").tobytes())
    return buffer.getvalue()


def asked(**fields: Any) -> dict[str, Any]:
    plain = {"model": "cloned", "input": INPUT, "response_format": "pcm", "seed": 3, "max_new_tokens": FRAMES}
    return plain | fields


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory: pytest.TempPathFactory) -> ModelsFile:
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    tiny_cloning_codec(folder / "codec")
    engines: dict[str, Any] = {
        "wave": {
            "service": "codec",
            "engine": "qwen3_tts",
            "checkpoint": str(folder / "codec"),
            "settings": {"batch_invariant": True},
        }
    }
    models: dict[str, Any] = {}
    for name, task in TASKS.items():
        make_checkpoint(folder / name, tts_model_type=task)
        engines[f"{name}-talker"] = {
            "service": "talker",
            "engine": "qwen3_tts",
            "checkpoint": str(folder / name),
            "settings": {"context": 256, "kv_tokens": 1024},
        }
        models[name] = {"pipeline": "speech", "nodes": {"talker": f"{name}-talker", "codec": "wave"}}
    return ModelsFile.model_validate({"version": 1, "engines": engines, "models": models})


@pytest.fixture(scope="module", name="engines")
def _engines(models: ModelsFile) -> Iterator[Engines]:
    engines = Engines(models)
    yield engines
    asyncio.run(engines.close())


class System:
    """Stages and gateways on a bus in memory."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.broker, self._space = MemoryBroker(), MemorySpace()
        self.bus, self.plane = self.member()

    def member(self) -> tuple[MemoryBus, Any]:
        """The bus and tensor plane of one process."""
        return MemoryBus(self.broker, "t"), memory_plane(self._space, inline_limit_bytes=4096)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[System]:
        specs = self.engines.models.engines.items()
        await self.bus.ensure(Topology.of("t", ((spec.service, key) for key, spec in specs)))
        async with AsyncExitStack() as stack:
            stages = {
                name: await stack.enter_async_context(stage(make(), self.engines, *self.member(), f"{name}-1"))
                for name, make in SERVICES.items()
            }
            async with asyncio.TaskGroup() as group:
                announcing = group.create_task(self._announce(stages))
                yield self
                announcing.cancel()

    async def _announce(self, stages: dict[str, Stage]) -> None:
        while True:
            for service, one in stages.items():
                presence = Presence(
                    service=service,
                    instance=f"{service}-1",
                    state="ready",
                    version="0",
                    contract=CONTRACT_VERSION,
                    pid=1,
                    host="h",
                    started=0.0,
                    engines=tuple(hosted.status() for hosted in one.hosted),
                )
                await self.bus.send(self.bus.subjects.presence(service, presence.instance), encode(presence))
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def gateway(self, name: str) -> AsyncIterator[httpx.AsyncClient]:
        bus, plane = self.member()
        dispatcher = BusDispatcher(bus, plane, Fleet(bus, self.engines.models, name))
        await dispatcher.start()
        pool = EncoderPool()
        app = create_app(
            dispatcher=dispatcher,
            models=self.engines.models,
            metrics=Metrics("gateway", name),
            encoders=pool,
            voices=await VoiceLibrary.open(bus),
        )
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url=f"http://{name}", timeout=200
            ) as http:
                async with asyncio.timeout(PATIENCE_S):
                    while (await http.get("/ready")).status_code != 200:
                        await asyncio.sleep(0.01)
                yield http
            await dispatcher.settled()
            assert plane.usage()["memory"][0] == 0, "no recording stays behind"
        finally:
            await dispatcher.close()
            pool.shutdown()


async def heard(http: httpx.AsyncClient, **fields: Any) -> NDArray[np.int16]:
    answered = await http.post(SPEECH, json=asked(**fields))
    assert answered.status_code == 200, answered.text
    samples = np.frombuffer(answered.content, "<i2").astype(np.int16)
    assert len(samples) == FRAMES * 1920
    return samples


async def direct(system: System, *, text: str) -> NDArray[np.int16]:
    """The same without a gateway: the codec's own features of the recording, handed to the talker."""
    codec: Any = (await system.engines.load(codec_service(), "wave")).engine
    features = await codec.references.encode(RECORDING, 24_000, tenant="nobody")
    reference = VoiceReference(
        codes=_inline(features.codes) if text else None, text=text, embedding=_inline(features.embedding)
    )
    work = SpeakText(
        request_id="direct",
        pipeline="speech",
        node="talker",
        route={"talker": "cloned-talker", "codec": "wave"},
        speech=SpeechOptions(voice="default", seed=3, max_frames=FRAMES, reference=reference),
        text=INPUT,
    )
    return (await answer(system.bus, system.plane, work)).samples


def _inline(array: NDArray[Any]) -> Inline:
    return Inline(data=array.tobytes(), dtype=str(array.dtype), shape=array.shape)


async def test_a_recording_in_the_request_and_a_kept_one_give_the_engines_own_voice(engines: Engines) -> None:
    sent = base64.b64encode(wav()).decode()
    async with System(engines).running() as system, system.gateway("one") as one, system.gateway("two") as two:
        expected = await direct(system, text=SAID)
        assert np.array_equal(await heard(one, ref_audio=sent, ref_text=SAID), expected)
        made = await one.post(
            VOICES,
            data={"name": "Anna", "consent": "given", "ref_text": SAID},
            files={"audio_sample": ("anna.wav", wav(), "audio/wav")},
        )
        assert made.status_code == 200, made.text
        assert made.json()["models"] == ["cloned"]
        assert np.array_equal(await heard(two, voice="anna"), expected)
        assert np.array_equal(await heard(two, voice={"id": made.json()["id"]}), expected)
        assert (await two.delete(f"{VOICES}/Anna")).status_code == 200
        assert (await one.post(SPEECH, json=asked(voice="Anna"))).status_code == 400


async def test_its_timbre_alone_by_recording_and_by_embedding(engines: Engines) -> None:
    codec: Any = (await engines.load(codec_service(), "wave")).engine
    embedding = (await codec.references.encode(RECORDING, 24_000, tenant="x")).embedding
    async with System(engines).running() as system, system.gateway("one") as http:
        expected = await direct(system, text="")
        sent = base64.b64encode(wav()).decode()
        assert np.array_equal(await heard(http, ref_audio=sent, x_vector_only_mode=True), expected)
        assert np.array_equal(await heard(http, speaker_embedding=[float(value) for value in embedding]), expected)
        assert not np.array_equal(await heard(http, ref_audio=sent, ref_text=SAID), expected)


async def test_named_and_described_voices(engines: Engines) -> None:
    async with System(engines).running() as system, system.gateway("one") as http:
        plain = await heard(http, model="named", voice="ryan", language="en")
        assert not np.array_equal(await heard(http, model="named", voice="ryan", language="zh"), plain)
        assert not np.array_equal(await heard(http, model="named", voice="vivian", language="en"), plain)
        old = await heard(http, model="designed", instructions="An old man.")
        await http.post(VOICES, json={"name": "Old man", "prompt": "An old man."})
        assert np.array_equal(await heard(http, model="designed", voice="Old man"), old)
        greedy = {"temperature": 0, "subtalker_temperature": 0, "model": "named", "voice": "ryan"}
        first = await heard(http, **greedy, seed=1)
        assert np.array_equal(await heard(http, **greedy, seed=2), first)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speaker_embedding": [1.0, 2.0]}, "speaker_embedding"),
        ({"model": "named", "voice": "ryan", "language": "Klingon"}, "language"),
        ({"model": "named", "voice": "nobody"}, "voice"),
        ({"model": "named", "voice": "ryan", "ref_audio": "AAAA"}, "ref_audio"),
        ({"model": "designed"}, "instructions"),
    ],
)
async def test_what_a_checkpoint_cannot_do_is_a_400_that_names_the_field(
    engines: Engines, fields: dict[str, Any], param: str
) -> None:
    async with System(engines).running() as system, system.gateway("one") as http:
        refused = await http.post(SPEECH, json=asked(**fields))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
        assert (await http.get("/ready")).status_code == 200
