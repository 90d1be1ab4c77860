"""POST /v1/audio/speech through the official SDK and a real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest

from omnistage.contracts import AnyWork, AudioDone, FinishReason, SpeakText
from omnistage.errors import InvalidRequest, StageFailed, Unavailable
from omnistage.observability import names
from omnistage_gateway.dispatch.interface import AudioPiece, Event

FORMATS = ["mp3", "opus", "aac", "flac", "wav", "pcm"]
MEDIA = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
TEXT = "Twenty-four words are not needed to hear whether all of it came."
SECONDS = len(TEXT) * 0.05
BODY = {"model": "tts-1", "voice": "alloy", "input": TEXT, "seed": 7}


def decode(data: bytes, name: str) -> tuple[Any, int]:
    if name == "pcm":
        return np.frombuffer(data, "<i2"), 24_000
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(container.decode(audio=0))
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), frames[0].sample_rate


def seconds(data: bytes, name: str) -> float:
    samples, rate_hz = decode(data, name)
    return len(samples) / rate_hz


async def sse(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_through_the_sdk(client: openai.AsyncOpenAI, name: Any) -> None:
    async with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=name
    ) as response:
        assert response.headers["content-type"] == MEDIA[name]
        assert "content-length" not in response.headers
        assert response.headers["transfer-encoding"] == "chunked"
        assert response.headers["omnistage-model"] == "hibari-heart"
        pieces = [piece async for piece in response.iter_bytes()]
    tolerance = 0.1 if name in ("mp3", "aac") else 0.05
    assert abs(seconds(b"".join(pieces), name) - SECONDS) <= tolerance


async def test_mp3_is_the_default(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.speech.create(model="hibari-heart", voice={"id": "heart"}, input=TEXT)
    assert answer.response.headers["content-type"] == "audio/mpeg"


@pytest.mark.parametrize("name", FORMATS)
async def test_events_carry_the_same_bytes_as_the_stream(http: httpx.AsyncClient, name: str) -> None:
    plain = await http.post("/v1/audio/speech", json={**BODY, "response_format": name})
    async with http.stream(
        "POST", "/v1/audio/speech", json={**BODY, "response_format": name, "stream_format": "sse"}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = await sse(response)
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == plain.content
    assert len(events) > 5
    output = -(-round(SECONDS * 1000) // 50)
    assert events[-1] == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": len(TEXT), "output_tokens": output, "total_tokens": len(TEXT) + output},
    }


@pytest.mark.parametrize("name", FORMATS)
async def test_one_piece_has_a_length_and_the_same_sound(http: httpx.AsyncClient, name: str) -> None:
    body = {**BODY, "response_format": name}
    whole = await http.post("/v1/audio/speech", json={**body, "stream": False})
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert abs(seconds(whole.content, name) - SECONDS) <= (0.1 if name == "aac" else 0.001)
    if name in ("wav", "pcm", "flac"):
        streamed = await http.post("/v1/audio/speech", json=body)
        assert np.array_equal(decode(streamed.content, name)[0], decode(whole.content, name)[0])


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1, 1.25, 2.0, 3.3, 4.0])
async def test_speed_natively_then_by_stretching(
    stand: Any, http: httpx.AsyncClient, speed: float, bounds: tuple[float, float]
) -> None:
    stand.fake.speeds = {"speed_min": bounds[0], "speed_max": bounds[1]}
    answer = await http.post("/v1/audio/speech", json={**BODY, "response_format": "wav", "speed": speed})
    assert answer.status_code == 200
    work = stand.fake.works[0]
    assert isinstance(work, SpeakText)
    assert work.speech.speed == min(max(speed, bounds[0]), bounds[1])
    assert seconds(answer.content, "wav") == pytest.approx(SECONDS / speed, rel=0.03)


@pytest.mark.parametrize("rate_hz", [8000, 16_000, 44_100])
async def test_another_sample_rate(http: httpx.AsyncClient, rate_hz: int) -> None:
    answer = await http.post("/v1/audio/speech", json={**BODY, "response_format": "wav", "sample_rate": rate_hz})
    samples, decoded_hz = decode(answer.content, "wav")
    assert decoded_hz == rate_hz
    assert abs(len(samples) / rate_hz - SECONDS) < 0.01


async def test_pcm_is_24_khz_whatever_the_voice(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield AudioPiece(np.full(48_000, 1000, np.int16), 48_000)

    stand.fake.script = script
    pcm = await http.post("/v1/audio/speech", json={**BODY, "response_format": "pcm"})
    wav = await http.post("/v1/audio/speech", json={**BODY, "response_format": "wav"})
    assert len(pcm.content) == 24_000 * 2
    assert decode(wav.content, "wav")[1] == 48_000


async def test_what_reaches_the_talker(stand: Any, http: httpx.AsyncClient) -> None:
    await http.post("/v1/audio/speech", json={**BODY, "seed": -1, "voice": {"id": "nova"}})
    await http.post("/v1/audio/speech", json={**BODY, "seed": None, "instructions": ""})
    await http.post("/v1/audio/speech", json={**BODY, "seed": None})
    first, second, third = stand.fake.works
    assert (first.node, first.pipeline, first.route) == ("talker", "speech", {"talker": "heart", "codec": "heart-wave"})
    assert (first.text, first.speech.voice, first.speech.instructions) == (TEXT, "heart", None)
    assert first.speech.seed == 2**63 - 1
    assert second.speech.seed != third.speech.seed
    assert stand.fake.plans[0].model == "hibari-heart"
    assert stand.fake.plans[0].deadline_s == 300


async def test_stages_are_told_whether_the_sound_is_streamed(stand: Any, http: httpx.AsyncClient) -> None:
    for extra in ({}, {"stream_format": "sse"}, {"stream": False}):
        await http.post("/v1/audio/speech", json={**BODY, **extra})
    assert [plan.streamed for plan in stand.fake.plans] == [True, True, False]


async def test_equal_seeds_give_equal_bytes(http: httpx.AsyncClient) -> None:
    for name in FORMATS:
        body = {**BODY, "response_format": name, "speed": 3.1}
        answers = [await http.post("/v1/audio/speech", json=body) for _ in range(2)]
        assert answers[0].content == answers[1].content


async def test_the_first_bytes_leave_with_the_first_piece(stand: Any, url: str, events: Any) -> None:
    go_on = asyncio.Event()

    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield AudioPiece(events["tone"](0.3), 24_000)
        await go_on.wait()
        yield AudioPiece(events["tone"](0.3), 24_000)

    stand.fake.script = script
    async with httpx.AsyncClient() as client:
        for name in FORMATS:
            go_on.clear()
            body = {**BODY, "response_format": name}
            async with client.stream("POST", f"{url}/v1/audio/speech", json=body) as response:
                pieces = response.aiter_raw()
                first = b""
                while len(first) < 1500:
                    first += await anext(pieces)
                go_on.set()
                rest = b"".join([piece async for piece in pieces])
            assert abs(seconds(first + rest, name) - 0.6) <= (0.1 if name in ("mp3", "aac") else 0.05)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (
            InvalidRequest("nothing speakable", code="not_speakable", param="input", stage="talker"),
            400,
            "invalid_request_error",
        ),
        (Unavailable("full", retry_after_s=2.2), 503, "service_unavailable_error"),
        (StageFailed("broken", stage="codec"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_an_error_before_the_first_audio_decides_the_status(
    stand: Any, http: httpx.AsyncClient, error: Any, status: int, kind: str, stream_format: str
) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        await asyncio.sleep(0)
        if error:
            raise error
        yield AudioPiece(np.zeros(0, np.int16), 24_000)

    stand.fake.script = script
    answer = await http.post("/v1/audio/speech", json={**BODY, "stream_format": stream_format})
    assert answer.status_code == status
    body = answer.json()["error"]
    assert (body["message"], body["type"], body["param"], body["code"]) == (
        error.message,
        kind,
        error.param,
        error.code,
    )
    assert body.get("stage") == error.stage
    assert answer.headers.get("retry-after") == ("3" if status == 503 else None)


async def test_refused_at_the_door(stand: Any, client: openai.AsyncOpenAI) -> None:
    stand.fake.door = Unavailable("full", code="line_full", retry_after_s=0.2)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
    assert caught.value.status_code == 503
    assert caught.value.code == "line_full"
    assert caught.value.response.headers["retry-after"] == "1"


async def test_no_sound_is_an_error(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield AudioPiece(np.zeros(0, np.int16), 24_000)

    stand.fake.script = script
    answer = await http.post("/v1/audio/speech", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "no_audio")


async def breaking(work: AnyWork) -> AsyncIterator[Event]:
    yield AudioPiece(np.full(24_000, 5000, np.int16), 24_000)
    await asyncio.sleep(0.01)
    raise StageFailed("the codec broke", stage="codec")


async def test_a_broken_stream_of_audio_never_ends_cleanly(stand: Any, url: str) -> None:
    stand.fake.script = breaking
    taken = []

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", f"{url}/v1/audio/speech", json=BODY) as response:
            async for piece in response.aiter_raw():
                taken.append((response.status_code, len(piece)))

    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await read(client)
        assert taken[0][0] == 200
        assert sum(size for _, size in taken) > 1000
        stand.fake.script = type(stand.fake).script
        assert (await client.post(f"{url}/v1/audio/speech", json=BODY)).status_code == 200


async def test_a_broken_stream_of_events_ends_with_an_error_event(stand: Any, url: str) -> None:
    stand.fake.script = breaking
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/audio/speech", json={**BODY, "stream_format": "sse"}) as response,
    ):
        events = await sse(response)
    assert events[0]["type"] == "speech.audio.delta"
    assert events[-1]["error"]["code"] == "stage_failed"
    assert events[-1]["error"]["stage"] == "codec"


async def test_a_broken_whole_answer_is_a_plain_error(stand: Any, http: httpx.AsyncClient) -> None:
    stand.fake.script = breaking
    answer = await http.post("/v1/audio/speech", json={**BODY, "stream": False})
    assert answer.status_code == 500


async def test_audio_metrics(stand: Any, http: httpx.AsyncClient) -> None:
    await http.post("/v1/audio/speech", json=BODY)
    assert stand.metrics.value(names.AUDIO_SECONDS, model="hibari-heart") == pytest.approx(SECONDS, abs=0.001)
    assert stand.metrics.value(names.REAL_TIME_FACTOR, model="hibari-heart") == 1
    shown = (await http.get("/metrics")).text
    labels = 'endpoint="/v1/audio/speech",instance="test",model="",stage="gateway",status="200"'
    assert f"omnistage_http_requests_total{{{labels}}} 1.0" in shown


@pytest.mark.parametrize("reason", ["stop", "length", None])
async def test_why_it_stopped_is_said_behind_the_sound(
    stand: Any, http: httpx.AsyncClient, reason: FinishReason | None
) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield AudioPiece(np.full(4800, 1000, np.int16), 24_000)
        if reason is not None:
            yield AudioDone(request_id="r", edge="codec-gateway", epoch=1, finish_reason=reason)

    stand.fake.script = script
    body = {**BODY, "response_format": "pcm"}
    async with http.stream("POST", "/v1/audio/speech", json={**body, "stream_format": "sse"}) as response:
        done = (await sse(response))[-1]
    assert done["type"] == "speech.audio.done"
    assert done.get("finish_reason") == reason
    whole = await http.post("/v1/audio/speech", json={**body, "stream": False})
    assert whole.headers.get("omnistage-finish-reason") == reason
    items = {"items": [{**BODY}]}
    [result] = (await http.post("/v1/audio/speech/batch", json=items)).json()["results"]
    assert result["finish_reason"] == reason
