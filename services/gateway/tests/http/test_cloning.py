"""Speech in a voice that the client brings along, describes or names, and how it is to be spoken."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from omnistage.contracts import (
    AnyWork,
    EncodeReference,
    Inline,
    SpeakText,
    SpeechSampling,
    VoiceReference,
    decode_work,
    encode,
)
from omnistage.errors import InvalidRequest, Unavailable
from omnistage.tensors.store import from_bytes
from omnistage_gateway.dispatch.interface import Event, VoiceFeatures
from omnistage_gateway.fetching import Fetched, UrlLoader
from omnistage_gateway.keyring import Keyring

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "cloned", "input": "Good day.", "response_format": "pcm", **fields}


@pytest.fixture
def stand(able: Callable[..., Any]) -> Any:
    return able()


def array(payload: Any) -> Any:
    assert isinstance(payload, Inline)
    return from_bytes(payload.data, payload.dtype, payload.shape)


def spoken(stand: Any) -> SpeakText:
    """What the talker was asked for last, as it reads it."""
    work = decode_work(encode(stand.fake.works[-1]))
    assert isinstance(work, SpeakText)
    return work


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("form", ["base64", "data", "list"])
async def test_a_recording_with_its_text(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes], features: Any, form: str
) -> None:
    text = b64(make_wav())
    audio: Any = {"base64": text, "data": f"data:audio/wav;base64,{text}", "list": [text]}[form]
    answer = await http.post(SPEECH, json=asked(ref_audio=audio, ref_text=" Hello. "))
    assert answer.status_code == 200, answer.text
    encoded, speech = stand.fake.works
    assert isinstance(encoded, EncodeReference)
    assert (encoded.pipeline, encoded.node, encoded.route) == ("reference", "codec", {"codec": "cloned-codec"})
    assert encoded.sample_rate_hz == 24_000
    assert encoded.request_id == f"{speech.request_id}-ref"
    plan = stand.fake.plans[0]
    assert plan.payload.dtype == np.int16
    assert len(plan.payload) == 48_000
    assert np.abs(plan.payload).max() == 9000
    reference = spoken(stand).speech.reference
    assert isinstance(reference, VoiceReference)
    assert reference.text == "Hello."
    assert np.array_equal(array(reference.codes), features[0])
    assert np.array_equal(array(reference.embedding), features[1])
    assert (speech.speech.task, speech.speech.voice) == ("base", "default")


async def test_the_timbre_alone(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes], features: Any
) -> None:
    body = asked(ref_audio=b64(make_wav()), x_vector_only_mode=True)
    assert (await http.post(SPEECH, json=body)).status_code == 200
    reference = spoken(stand).speech.reference
    assert reference is not None
    assert (reference.codes, reference.text) == (None, "")
    assert np.array_equal(array(reference.embedding), features[1])


async def test_an_embedding_needs_no_encoder(stand: Any, http: httpx.AsyncClient) -> None:
    assert (await http.post(SPEECH, json=asked(speaker_embedding=[0.5, -1, 2]))).status_code == 200
    (work,) = stand.fake.works
    reference = work.speech.reference
    assert array(reference.embedding).tolist() == [0.5, -1.0, 2.0]
    assert array(reference.embedding).dtype == np.float32
    assert reference.codes is None


async def test_a_url_goes_through_the_one_loader(able: Any, make_wav: Callable[..., bytes]) -> None:
    asked_for: list[tuple[str, str]] = []

    class Loader(UrlLoader):
        async def load(self, url: str, *, param: str) -> Fetched:
            asked_for.append((url, param))
            return Fetched(make_wav(), "text/html")

    stand = able(urls=Loader())
    transport = httpx.ASGITransport(stand.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        body = asked(ref_audio="https://voices.example/a.wav", ref_text="Hello.")
        assert (await http.post(SPEECH, json=body)).status_code == 200
    assert asked_for == [("https://voices.example/a.wav", "ref_audio")]
    stand.pool.shutdown()


async def test_a_described_voice(stand: Any, http: httpx.AsyncClient) -> None:
    assert (await http.post(SPEECH, json=asked(model="designed", instructions="An old man."))).status_code == 200
    speech = spoken(stand).speech
    assert (speech.task, speech.instructions, speech.voice) == ("voice_design", "An old man.", "default")
    made = await http.post(VOICES, json={"name": "Old man", "type": "prompt", "prompt": "A very old man."})
    assert made.status_code == 200, made.text
    assert made.json()["models"] == ["designed"]
    assert (await http.post(SPEECH, json=asked(model="designed", voice="old man"))).status_code == 200
    assert spoken(stand).speech.instructions == "A very old man."


@pytest.mark.parametrize(("voice", "own"), [(None, "vivian"), ("ryan", "ryan"), ("Ryan", "ryan")])
async def test_announced_voices_by_name(stand: Any, http: httpx.AsyncClient, voice: str | None, own: str) -> None:
    assert (await http.post(SPEECH, json=asked(model="named", voice=voice))).status_code == 200
    assert spoken(stand).speech.voice == own


async def test_every_extra_reaches_the_talker(stand: Any, http: httpx.AsyncClient) -> None:
    body = asked(
        model="named",
        voice="ryan",
        task_type="CustomVoice",
        language="English",
        instructions="Whisper.",
        max_new_tokens=77,
        initial_codec_chunk_frames=3,
        non_streaming_mode=False,
        temperature=0,
        top_k=5,
        top_p=0.5,
        repetition_penalty=1.5,
        subtalker_temperature=0.25,
        subtalker_top_k=6,
        subtalker_top_p=0.75,
        seed=3,
    )
    assert (await http.post(SPEECH, json=body)).status_code == 200
    speech = spoken(stand).speech
    assert (speech.task, speech.language, speech.instructions) == ("custom_voice", "English", "Whisper.")
    assert (speech.max_frames, speech.first_frames, speech.non_streaming_mode) == (77, 3, False)
    assert speech.sampling == SpeechSampling(
        temperature=0.0,
        top_k=5,
        top_p=0.5,
        repetition_penalty=1.5,
        residual_temperature=0.25,
        residual_top_k=6,
        residual_top_p=0.75,
    )
    assert (speech.seed, speech.seed_drawn) == (3, False)


@pytest.mark.parametrize(
    ("fields", "drawn"), [({}, True), ({"seed": 0}, False), ({"max_new_tokens": 50}, False), ({"top_k": 3}, True)]
)
async def test_a_second_attempt_is_allowed_where_nobody_asked_for_the_first(
    stand: Any, http: httpx.AsyncClient, fields: dict[str, Any], drawn: bool
) -> None:
    assert (await http.post(SPEECH, json=asked(model="named", **fields))).status_code == 200
    assert spoken(stand).speech.seed_drawn is drawn


async def test_models_say_what_they_honour(http: httpx.AsyncClient) -> None:
    cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
    assert "ref_audio" in cards["cloned"]["accepts"]
    assert "ref_audio" not in cards["named"]["accepts"]
    assert cards["hibari-heart"]["accepts"] == []
    assert cards["named"]["voices"] == ["vivian", "ryan"]
    assert cards["cloned"]["voices"] == []


@pytest.mark.parametrize("fields", [{"x_vector_only_mode": False}, {"ref_text": ""}, {"language": None}])
async def test_what_asks_for_nothing_is_accepted_by_every_model(
    stand: Any, http: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    assert (await http.post(SPEECH, json=asked(model="tts-1", **fields))).status_code == 200


async def test_an_encoder_that_is_busy_says_when_to_come_back(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes]
) -> None:
    stand.fake.door = Unavailable("full", retry_after_s=3.0)
    answer = await http.post(SPEECH, json=asked(ref_audio=b64(make_wav()), ref_text="Hello."))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


async def test_what_the_encoder_refuses_names_the_recording(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes]
) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if isinstance(work, EncodeReference):
            raise InvalidRequest("the recording is too short")
        yield VoiceFeatures(np.zeros((1, 1), np.int32), None)

    stand.fake.script = script
    answer = await http.post(SPEECH, json=asked(ref_audio=b64(make_wav()), ref_text="Hello."))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"
    assert len(stand.fake.works) == 1, "nothing was spoken"


async def test_a_client_that_leaves_while_its_recording_is_encoded_ends_it(
    stand: Any, serve: Any, make_wav: Callable[..., bytes]
) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        yield VoiceFeatures(np.zeros((1, 1), np.int32), None)

    stand.fake.script = script
    async with serve(stand.app) as base, httpx.AsyncClient(base_url=base) as http:
        request = asyncio.ensure_future(
            http.post(SPEECH, json=asked(ref_audio=b64(make_wav()), ref_text="Hello."), timeout=30)
        )
        async with asyncio.timeout(10):
            while not stand.fake.active:
                await asyncio.sleep(0.01)
        request.cancel()
        async with asyncio.timeout(10):
            while not stand.fake.idle:
                await asyncio.sleep(0.01)
    assert stand.fake.completed == []


async def test_keys_speak_in_their_own_voices_alone(able: Any, make_wav: Callable[..., bytes]) -> None:
    stand = able(keyring=Keyring({"anna": "key-a", "berta": "key-b"}))
    transport = httpx.ASGITransport(stand.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
        made = await http.post(VOICES, json={"name": "Me", "speaker_embedding": [1.0], "consent": "x"}, headers=mine)
        assert made.status_code == 200, made.text
        for voice in ("Me", made.json()["id"], {"id": made.json()["id"]}):
            answers = [await http.post(SPEECH, json=asked(voice=voice), headers=key) for key in (mine, theirs)]
            assert [answer.status_code for answer in answers] == [200, 400]
            assert answers[1].json()["error"]["param"] == "voice"
        assert (await http.delete(f"{VOICES}/Me", headers=theirs)).status_code == 404
        assert len((await http.get(f"{VOICES}?model=cloned", headers=theirs)).json()["data"]) == 0
    stand.pool.shutdown()
