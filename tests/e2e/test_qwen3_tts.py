"""Qwen3-TTS as a user runs it: every task over HTTP, kept voices, and stages that are killed in mid-utterance."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from services.talker.tests.checkpoints import make_checkpoint
from tests.support.checkpoints import join_codec, tiny_cloning_codec
from tests.support.presences import watching
from tests.support.progress import log_subject, progress
from tests.support.system import System, running_system

from omnistage.config import ModelsFile
from omnistage.contracts import End, FrameChunk, Inline, Opened, decode_record
from omnistage.transport import Bus

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(400)]

SPEECH, BATCH, VOICES = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"
TASKS = {"named": "custom_voice", "designed": "voice_design", "cloned": "base"}
WIDTH = 16
BYTES_PER_FRAME = 2 * 1920
FRAMES, LONG, SEED = 10, 72, 8
"""A short answer and a long one, and a seed with which the long one goes on to its ceiling."""

PACE = 4.0
SAID = "What it says."
SAMPLES = (np.random.default_rng(5).standard_normal(36_000) * 3000).astype("<i2")
PLAIN = {"input": "The weather is nice today.", "response_format": "pcm", "seed": 3, "max_new_tokens": FRAMES}


def wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(SAMPLES.tobytes())
    return buffer.getvalue()


RECORDING = base64.b64encode(wav()).decode()
EMBEDDING = [round(float(value), 4) for value in np.random.default_rng(6).standard_normal(WIDTH)]
WAYS: dict[str, dict[str, Any]] = {
    "custom_voice": {"model": "named", "voice": "ryan", "language": "en", "task_type": "CustomVoice"},
    "instructed": {"model": "named", "voice": "ryan", "language": "en", "instructions": "Whisper."},
    "voice_design": {"model": "designed", "instructions": "An old man.", "task_type": "VoiceDesign"},
    "recording": {"model": "cloned", "ref_audio": RECORDING, "ref_text": SAID, "task_type": "Base"},
    "timbre": {"model": "cloned", "ref_audio": RECORDING, "x_vector_only_mode": True},
    "embedding": {"model": "cloned", "speaker_embedding": EMBEDDING},
}


@pytest.fixture(scope="module", name="qwen3")
def _qwen3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Two gateways, talkers and codecs; sound leaves at four times its speed, so that it is under way for a while."""
    folder = tmp_path_factory.mktemp("qwen3-tts")
    models = folder / "models.yaml"
    # A file of this format is YAML, and JSON is YAML.
    models.write_text(_models(folder).model_dump_json(exclude_defaults=True))
    with running_system(folder, scale="gateway=2,talker=2,codec=2", models=str(models)) as running:
        yield running


def _models(folder: Path) -> ModelsFile:
    codec = tiny_cloning_codec(folder / "codec", width=WIDTH)
    engines: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for name, task in TASKS.items():
        checkpoint = str(make_checkpoint(folder / name, tts_model_type=task))
        settings = {"context": 256, "kv_tokens": 1024, "pace": PACE}
        engines[f"{name}-talker"] = {"service": "talker", "engine": "qwen3_tts", "checkpoint": checkpoint, "slots": 1}
        engines[f"{name}-talker"]["settings"] = settings
        models[name] = {"pipeline": "speech", "nodes": {"talker": f"{name}-talker", "codec": "wave"}}
    # The codec of a checkpoint for cloning has the encoders; its decoder is that of all the others.
    checkpoint = str(join_codec(folder / "cloned", codec))
    settings = {"batch_invariant": True, "pace": PACE}
    engines["wave"] = {"service": "codec", "engine": "qwen3_tts", "checkpoint": checkpoint, "slots": 2}
    engines["wave"]["settings"] = settings
    return ModelsFile.model_validate({"version": 1, "engines": engines, "models": models})


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def raw(http: httpx.AsyncClient, **fields: Any) -> bytes:
    answered = await http.post(SPEECH, json=PLAIN | fields)
    assert answered.status_code == 200, answered.text
    return answered.content


async def evented(http: httpx.AsyncClient, **fields: Any) -> bytes:
    answered = await http.post(SPEECH, json=PLAIN | fields | {"stream_format": "sse"})
    *deltas, done = events(answered.text)
    assert (done["type"], done["finish_reason"]) == ("speech.audio.done", "length")
    return b"".join(base64.b64decode(delta["audio"]) for delta in deltas)


async def test_every_way_to_make_a_voice_sounds_alike_raw_as_events_and_in_a_batch(qwen3: System) -> None:
    async with httpx.AsyncClient(base_url=qwen3.url, timeout=180) as http:
        plain = {way: await raw(http, **fields) for way, fields in WAYS.items()}
        assert {len(sound) for sound in plain.values()} == {FRAMES * BYTES_PER_FRAME}
        assert len(set(plain.values())) == len(WAYS)
        for way, fields in WAYS.items():
            assert await evented(http, **fields) == plain[way], way
        common = {name: value for name, value in PLAIN.items() if name != "input"}
        asked = [*WAYS.values(), {"model": "cloned", "voice": "nobody"}]
        items = [{"input": PLAIN["input"], **fields} for fields in asked]
        answered = await http.post(BATCH, json=common | {"items": items})
        *spoken, refused = answered.json()["results"]
        assert [base64.b64decode(result["audio_data"]) for result in spoken] == list(plain.values())
        assert {result["finish_reason"] for result in spoken} == {"length"}
        assert (refused["status"], refused["error"]["param"]) == ("error", "voice")


def test_the_official_client_speaks_with_every_task(qwen3: System) -> None:
    client = qwen3.client()
    for way in ("custom_voice", "voice_design", "recording"):
        fields = dict(WAYS[way])
        asked = {"model": fields.pop("model"), "voice": fields.pop("voice", "default"), "input": PLAIN["input"]}
        extra = fields | {"seed": 3, "max_new_tokens": FRAMES}
        with client.audio.speech.with_streaming_response.create(
            **asked, response_format="pcm", extra_body=extra
        ) as answer:
            assert sum(map(len, answer.iter_bytes())) == FRAMES * BYTES_PER_FRAME


@dataclass
class Heard:
    """What a request left in the logs of its two edges while it ran, and what its client got."""

    request_id: str = ""
    sound: bytearray = field(default_factory=bytearray)
    codes: list[bytes] = field(default_factory=list)
    holders: dict[str, list[str]] = field(default_factory=lambda: {"talker": [], "codec": []})


ENGINES = {"talker": "cloned-talker", "codec": "wave"}


async def follow(bus: Bus, service: str, heard: Heard) -> None:
    """Read the log by which a stage is judged, to its end."""
    log = await bus.follow(log_subject(bus, service, ENGINES[service], heard.request_id))
    try:
        async for message in log:
            record = decode_record(message.body)
            if isinstance(record, Opened):
                heard.holders[service].append(record.instance)
            elif isinstance(record, FrameChunk):
                assert isinstance(record.payload, Inline)
                heard.codes.append(record.payload.data)
            elif isinstance(record, End):
                return
    finally:
        await log.close()


async def listen(http: httpx.AsyncClient, bus: Bus, begun: asyncio.Event | None = None, **fields: Any) -> Heard:
    """A whole answer, with what its stages wrote meanwhile; `begun` is set when some of it has come."""
    heard = Heard()
    asked = PLAIN | {"model": "cloned", "max_new_tokens": LONG, "seed": SEED} | fields
    async with (
        asyncio.timeout(120),
        http.stream("POST", SPEECH, json=asked) as answer,
        asyncio.TaskGroup() as group,
    ):
        assert answer.status_code == 200, await answer.aread()
        heard.request_id = answer.headers["x-request-id"]
        for service in ENGINES:
            group.create_task(follow(bus, service, heard))
        async for part in answer.aiter_bytes():
            heard.sound += part
            if begun is not None and len(heard.sound) > 4 * BYTES_PER_FRAME:
                begun.set()
    return heard


async def test_a_kept_voice_is_the_recordings_own_on_every_instance(qwen3: System) -> None:
    async with httpx.AsyncClient(base_url=qwen3.url, timeout=180) as http, qwen3.bus() as bus:
        made = await http.post(
            VOICES,
            data={"name": "Anna", "consent": "given", "ref_text": SAID},
            files={"audio_sample": ("anna.wav", wav(), "audio/wav")},
        )
        assert made.json()["models"] == ["cloned"], made.text
        # A talker has one slot here, so two at once are on two of them.
        pair = await asyncio.gather(*(listen(http, bus, voice="anna") for _ in range(2)))
        assert {heard.holders["talker"][0] for heard in pair} == {
            process["instance"] for process in await asyncio.to_thread(qwen3.processes, "talker")
        }
        own = await listen(http, bus, ref_audio=RECORDING, ref_text=SAID)
        assert [heard.sound for heard in pair] == [own.sound] * 2
        assert len(own.sound) == LONG * BYTES_PER_FRAME
        voice = {"id": made.json()["id"]}
        assert await raw(http, model="cloned", voice=voice, seed=SEED) == bytes(own.sound[: FRAMES * BYTES_PER_FRAME])
        assert (await http.delete(f"{VOICES}/Anna")).status_code == 200


@pytest.mark.parametrize("killed", list(ENGINES))
async def test_codes_and_samples_go_on_exactly_when_a_stage_is_killed(qwen3: System, killed: str) -> None:
    fields: dict[str, Any] = {"ref_audio": RECORDING, "ref_text": SAID}
    async with httpx.AsyncClient(base_url=qwen3.url, timeout=180) as http, qwen3.bus() as bus, watching(bus) as living:
        await living.wait_ready(killed, 2)
        whole = await listen(http, bus, **fields)
        assert len(b"".join(whole.codes)) == LONG * 16 * 4
        begun = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(listen(http, bus, begun, **fields))
            await begun.wait()
            [victim] = [presence for presence in living.ready(killed) if presence.running]
            os.kill(victim.pid, signal.SIGKILL)
            subject = log_subject(bus, killed, ENGINES[killed], victim.running[0])
            assert not (await progress(bus, subject)).over, "it was killed too late"
        broken = running.result()
    assert broken.sound == whole.sound
    assert b"".join(broken.codes) == b"".join(whole.codes)
    first, *others = broken.holders[killed]
    assert first == victim.instance
    assert others
    assert victim.instance not in others
    assert len(broken.holders["codec" if killed == "talker" else "talker"]) == 1
