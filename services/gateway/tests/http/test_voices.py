"""/v1/audio/voices and /v1/audio/voice_consents: through the official SDK, the peers' form and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnistage.contracts import EncodeReference, SpeakText
from omnistage.errors import NotFound
from omnistage.tensors.store import from_bytes
from omnistage_gateway.audio.recording import decode_recording
from omnistage_gateway.voices import VoiceLibrary, VoiceLimits

SPEECH, VOICES, CONSENTS = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/voice_consents"


@pytest.fixture
def stand(able: Callable[..., Any]) -> Any:
    return able()


def asked(voice: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "cloned", "input": "Good day.", "response_format": "pcm", "voice": voice, **fields}


async def upload(http: httpx.AsyncClient, sample: bytes, **fields: str) -> dict[str, Any]:
    data = {"name": "Anna", "consent": "signed on paper", **fields}
    answer = await http.post(VOICES, data=data, files={"audio_sample": ("anna.wav", sample, "audio/wav")})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_the_sdk_makes_uses_and_deletes_a_voice(
    stand: Any, client: openai.AsyncOpenAI, make_wav: Callable[..., bytes]
) -> None:
    consent = await client.audio.voice_consents.create(
        language="en-GB", name="Anna agrees", recording=("a.wav", make_wav(3.0), "audio/wav")
    )
    assert (consent.object, consent.language, consent.name) == ("audio.voice_consent", "en-GB", "Anna agrees")
    assert await client.audio.voice_consents.retrieve(consent.id) == consent
    sample = make_wav(5.0)
    voice = await client.audio.voices.create(
        name="Anna", consent=consent.id, audio_sample=("a.wav", sample, "audio/wav")
    )
    assert (voice.object, voice.name, voice.type) == ("audio.voice", "Anna", "audio_sample")
    spoken = await client.audio.speech.create(model="cloned", voice={"id": voice.id}, input="Good day.")
    assert len(spoken.content) > 1000
    encoded, speech = stand.fake.works
    assert isinstance(encoded, EncodeReference)
    assert np.array_equal(stand.fake.plans[0].payload, decode_recording(sample).samples)
    assert isinstance(speech, SpeakText)
    deleted = await client.audio.voices.delete(voice.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (voice.id, "audio.voice.deleted", True)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.speech.create(model="cloned", voice={"id": voice.id}, input="Good day.")
    assert caught.value.param == "voice"
    with pytest.raises(openai.NotFoundError):
        await client.audio.voices.delete(voice.id)


async def test_the_sdk_pages_through_renames_and_deletes_consents(
    client: openai.AsyncOpenAI, make_wav: Callable[..., bytes]
) -> None:
    made = [
        await client.audio.voice_consents.create(language="de", name=f"Consent {index}", recording=make_wav(1.0))
        for index in range(5)
    ]
    page = await client.audio.voice_consents.list(limit=2)
    assert len(page.data) == 2
    assert page.has_more
    listed = [consent async for consent in client.audio.voice_consents.list(limit=2)]
    assert {consent.id for consent in listed} == {consent.id for consent in made}
    assert len(listed) == 5
    renamed = await client.audio.voice_consents.update(made[0].id, name="Another")
    assert (renamed.id, renamed.name) == (made[0].id, "Another")
    gone = await client.audio.voice_consents.delete(made[0].id)
    assert (gone.id, gone.deleted) == (made[0].id, True)
    with pytest.raises(openai.NotFoundError):
        await client.audio.voice_consents.retrieve(made[0].id)


async def test_a_voice_that_is_described_through_the_sdk(client: openai.AsyncOpenAI) -> None:
    voice = await client.audio.voices.create(name="Old man", type="prompt", prompt="A very old man.")
    assert (voice.type, voice.prompt) == ("prompt", "A very old man.")


async def test_the_form_of_the_peers(http: httpx.AsyncClient, stand: Any, make_wav: Callable[..., bytes]) -> None:
    made = await upload(http, make_wav(), ref_text="Hello.", speaker_description="warm")
    assert (made["ref_text"], made["description"], made["consent"]) == ("Hello.", "warm", "signed on paper")
    assert (made["mime_type"], made["file_size"], made["duration_s"]) == ("audio/wav", len(make_wav()), 2.0)
    assert made["models"] == ["cloned"]
    assert (await http.post(SPEECH, json=asked("anna"))).status_code == 200
    reference = stand.fake.works[-1].speech.reference
    assert reference.text == "Hello."
    assert reference.codes is not None
    assert (await http.post(SPEECH, json=asked("Anna", x_vector_only_mode=True))).status_code == 200
    reference = stand.fake.works[-1].speech.reference
    assert (reference.text, reference.codes) == ("", None)
    embedded = await http.post(
        VOICES,
        files={
            "name": (None, "Berta"),
            "consent": (None, "yes"),
            "speaker_embedding": (None, json.dumps([0.25] * 2048)),
        },
    )
    assert embedded.status_code == 200, embedded.text
    assert embedded.json()["type"] == "speaker_embedding"
    before = len(stand.fake.works)
    assert (await http.post(SPEECH, json=asked("Berta"))).status_code == 200
    assert len(stand.fake.works) == before + 1, "there is nothing to encode"
    payload = stand.fake.works[-1].speech.reference.embedding
    assert from_bytes(payload.data, payload.dtype, payload.shape).tolist() == [0.25] * 2048


async def test_listed_with_the_built_in_ones(http: httpx.AsyncClient, make_wav: Callable[..., bytes]) -> None:
    made = await upload(http, make_wav())
    everything = (await http.get(VOICES)).json()["data"]
    assert everything[-1] == made
    assert {"vivian", "ryan", "heart"} <= {card["name"] for card in everything}
    assert [card["id"] for card in (await http.get(VOICES, params={"model": "cloned"})).json()["data"]] == [made["id"]]
    assert made not in (await http.get(VOICES, params={"model": "named"})).json()["data"]
    for name in ("Anna", "aNNa", made["id"]):
        assert (await http.get(f"{VOICES}/{name}")).json() == made


async def test_a_voice_of_one_gateway_speaks_at_another(able: Any, make_wav: Callable[..., bytes]) -> None:
    library = VoiceLibrary.in_memory()
    first, second = able(voices=library), able(voices=library)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(first.app), base_url="http://one") as http:
        made = await upload(http, make_wav())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(second.app), base_url="http://two") as http:
        assert (await http.post(SPEECH, json=asked(made["id"]))).status_code == 200
        await http.delete(f"{VOICES}/Anna")
    assert len(second.fake.works) == 2
    with pytest.raises(NotFound):
        await library.remove_voice("anonymous", "Anna")
    first.pool.shutdown()
    second.pool.shutdown()


async def test_a_voice_is_used_up_once_there_are_too_many(able: Any, make_wav: Callable[..., bytes]) -> None:
    stand = able(voices=VoiceLibrary.in_memory(VoiceLimits(voices=1)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(stand.app), base_url="http://one") as http:
        await upload(http, make_wav())
        answer = await http.post(
            VOICES, data={"name": "B", "consent": "c"}, files={"audio_sample": ("b.wav", make_wav())}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_voices")
        assert (await http.get(f"{VOICES}/B")).status_code == 404
    stand.pool.shutdown()


async def test_a_voice_that_goes_while_it_is_asked_for_is_an_error_of_its_own(
    http: httpx.AsyncClient, make_wav: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(http, make_wav())

    async def gone(*_: Any) -> Any:
        return None

    monkeypatch.setattr("omnistage_gateway.voices.shelf.Shelf.content", gone)
    answer = await http.post(SPEECH, json=asked("Anna"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "voice_not_found")


async def test_the_document_names_forms_and_shapes(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    form = document["paths"][VOICES]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["audio_sample"]["format"] == "binary"
    assert "VoiceRequest" in document["components"]["schemas"]
    assert "ref_audio" in document["components"]["schemas"]["SpeechRequest"]["properties"]


async def test_pages_of_browsers_may_delete(able: Any) -> None:
    stand = able(cors_origins=["https://a.example"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(stand.app), base_url="http://one") as http:
        headers = {"origin": "https://a.example", "access-control-request-method": "DELETE"}
        assert (await http.options(f"{VOICES}/x", headers=headers)).status_code == 200
    stand.pool.shutdown()
