"""Spoken answers of conversations in voices that clients have kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from omnistage.config import ModelsFile
from omnistage.contracts import AnyWork, EncodeReference, GenerateText, Inline, decode_work, encode
from omnistage.errors import InvalidRequest
from omnistage.tensors.store import from_bytes
from omnistage_gateway.dispatch.interface import Event, VoiceFeatures

CHAT, VOICES = "/v1/chat/completions", "/v1/audio/voices"


def asked(voice: Any, model: str = "cloned", **fields: Any) -> dict[str, Any]:
    return {
        "model": f"{model}-chat",
        "messages": [{"role": "user", "content": "Hi."}],
        "modalities": ["text", "audio"],
        "audio": {"format": "wav"} | ({} if voice is None else {"voice": voice}),
        **fields,
    }


@pytest.fixture
def stand(able: Callable[..., Any], make_stand: Callable[..., Any]) -> Any:
    """For each talker a model that answers conversations through it."""
    made = able()
    made.pool.shutdown()
    data = made.fake.models.model_dump()
    thinker = data["models"]["smollm2"]["nodes"]["thinker"]
    for name in ("named", "designed", "cloned"):
        nodes = {"thinker": thinker, **data["models"][name]["nodes"]}
        data["models"][f"{name}-chat"] = {"pipeline": "omni", "nodes": nodes}
    chatting = make_stand(models=ModelsFile.model_validate(data))
    chatting.fake.views = made.fake.views
    return chatting


def array(payload: Any) -> Any:
    assert isinstance(payload, Inline)
    return from_bytes(payload.data, payload.dtype, payload.shape)


def answered(stand: Any) -> GenerateText:
    """What the thinker was asked for last, as it reads it."""
    work = decode_work(encode(stand.fake.works[-1]))
    assert isinstance(work, GenerateText)
    return work


async def keep(http: httpx.AsyncClient, sample: bytes | None = None, **fields: str) -> None:
    data = {"consent": "given", **fields}
    if sample is None:
        made = await http.post(VOICES, json=fields | {"speaker_embedding": [0.5, 1.0], "consent": "given"})
    else:
        made = await http.post(VOICES, data=data, files={"audio_sample": ("a.wav", sample, "audio/wav")})
    assert made.status_code == 200, made.text


@pytest.mark.parametrize("count", [1, 2])
async def test_every_answer_is_spoken_in_a_kept_voice(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes], features: Any, count: int
) -> None:
    await keep(http, make_wav(), name="Anna", ref_text="Hello.")
    answer = await http.post(CHAT, json=asked("anna", n=count, seed=3))
    assert answer.status_code == 200, answer.text
    encoded, *works = stand.fake.works
    assert isinstance(encoded, EncodeReference), "encoded once for all answers"
    assert encoded.route == {"codec": "cloned-codec"}
    assert len(works) == count
    for work in works:
        assert (work.speech.voice, work.speech.task, work.speech.seed) == ("default", "base", work.sampling.seed)
        assert work.speech.reference.text == "Hello."
        assert np.array_equal(array(work.speech.reference.codes), features[0])
        assert np.array_equal(array(work.speech.reference.embedding), features[1])
    assert answered(stand) == works[-1]


async def test_a_kept_timbre_needs_no_encoder(stand: Any, http: httpx.AsyncClient) -> None:
    await keep(http, name="Bert")
    assert (await http.post(CHAT, json=asked({"id": "Bert"}))).status_code == 200
    speech = answered(stand).speech
    assert len(stand.fake.works) == 1
    assert speech is not None
    assert speech.reference is not None
    assert array(speech.reference.embedding).tolist() == [0.5, 1.0]
    assert (speech.reference.codes, speech.reference.text) == (None, "")


async def test_a_described_voice(stand: Any, http: httpx.AsyncClient) -> None:
    made = await http.post(VOICES, json={"name": "Old", "type": "prompt", "prompt": "An old man."})
    assert made.status_code == 200, made.text
    assert (await http.post(CHAT, json=asked("old", "designed"))).status_code == 200
    speech = answered(stand).speech
    assert speech is not None
    assert (speech.instructions, speech.task, speech.reference) == ("An old man.", "voice_design", None)


@pytest.mark.parametrize(("voice", "own"), [("Ryan", "ryan"), (None, "vivian")])
async def test_announced_voices(stand: Any, http: httpx.AsyncClient, voice: str | None, own: str) -> None:
    assert (await http.post(CHAT, json=asked(voice, "named"))).status_code == 200
    speech = answered(stand).speech
    assert speech is not None
    assert speech.voice == own


@pytest.mark.parametrize(
    ("voice", "model", "said"),
    [
        ("Bert", "named", "cannot speak with voices from recordings"),
        ("Bert", "designed", "cannot speak with voices from recordings"),
        ("nobody", "named", "Its voices: vivian, ryan"),
        ("nobody", "cloned", "uploaded to /v1/audio/voices"),
        (None, "cloned", "uploaded to /v1/audio/voices"),
        (None, "designed", "uploaded to /v1/audio/voices"),
    ],
)
async def test_a_voice_that_the_model_has_not_is_refused_by_name(
    stand: Any, http: httpx.AsyncClient, voice: str | None, model: str, said: str
) -> None:
    await keep(http, name="Bert")
    refused = await http.post(CHAT, json=asked(voice, model))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio.voice"), refused.text
    assert said in refused.json()["error"]["message"]
    assert stand.fake.works == []


async def test_what_the_talker_refuses_of_a_voice_names_it(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if isinstance(work, GenerateText):
            raise InvalidRequest("an embedding has 8 numbers", param="speaker_embedding", stage="talker")
        yield VoiceFeatures(np.zeros((1, 1), np.int32), None)

    await keep(http, name="Bert")
    stand.fake.script = script
    refused = await http.post(CHAT, json=asked("Bert"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio.voice"), refused.text
