"""POST /v1/audio/speech/batch: many texts, each with its own result or error."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from omnistage.contracts import AnyWork, EncodeReference, SpeakText
from omnistage.errors import OmnistageError, RateLimited, StageFailed, Unavailable
from omnistage_gateway.dispatch.interface import Event

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
DEFAULTS: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "response_format": "pcm", "seed": 7}


@pytest.fixture
def stand(able: Callable[..., Any]) -> Any:
    return able()


async def test_each_item_sounds_as_if_it_were_alone(stand: Any, http: httpx.AsyncClient) -> None:
    items: list[dict[str, Any]] = [
        {"input": "One."},
        {"input": "Two and three.", "speed": 2.0},
        {"input": "Four.", "response_format": "wav"},
    ]
    answer = await http.post(BATCH, json={**DEFAULTS, "items": items})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 3, 0)
    assert body["id"].startswith("speech-batch-")
    assert {plan.priority for plan in stand.fake.plans} == {"batch"}
    for index, (item, result) in enumerate(zip(items, body["results"], strict=True)):
        alone = await http.post(SPEECH, json={**DEFAULTS, **item, "stream": False})
        assert (result["index"], result["status"], result["error"]) == (index, "success", None)
        assert base64.b64decode(result["audio_data"]) == alone.content
        assert result["media_type"] == alone.headers["content-type"]
        assert result["model"] == "hibari-heart"
        assert result["usage"]["input_tokens"] == len(item["input"])
        assert result["usage"]["output_tokens"] > 0


async def test_one_that_fails_fails_alone(stand: Any, http: httpx.AsyncClient) -> None:
    usual = stand.fake.script

    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if isinstance(work, SpeakText) and work.text == "Break.":
            raise StageFailed("broken", stage="talker")
        async for event in usual(work):
            yield event

    stand.fake.script = script
    items: list[dict[str, Any]] = [
        {"input": "Good."},
        {"input": "Break."},
        {"input": ""},
        {"input": "Good.", "voice": "nobody"},
        {"input": "Good.", "model": "nothing"},
        {"input": "Good.", "speed": 9},
        {},
        {"input": "Good.", "model": "cloned", "voice": None, "speaker_embedding": [1.0]},
    ]
    answer = await http.post(BATCH, json={**DEFAULTS, "items": items})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (8, 2, 6)
    errors = [result["error"] and (result["error"]["code"], result["error"]["param"]) for result in body["results"]]
    assert errors == [
        None,
        ("stage_failed", None),
        ("invalid_value", "input"),
        ("invalid_value", "voice"),
        ("model_not_found", "model"),
        ("invalid_value", "speed"),
        ("missing_required_parameter", "input"),
        None,
    ]
    assert all(result["audio_data"] is None for result in body["results"] if result["status"] == "error")


@pytest.mark.parametrize("refusal", [RateLimited, Unavailable])
async def test_an_item_that_is_refused_for_load_says_when_to_come_back(
    stand: Any, http: httpx.AsyncClient, refusal: type[OmnistageError]
) -> None:
    usual = stand.fake.script

    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if isinstance(work, SpeakText) and work.text == "Full.":
            raise refusal("busy", retry_after_s=2.2)
        async for event in usual(work):
            yield event

    stand.fake.script = script
    answer = await http.post(BATCH, json={**DEFAULTS, "items": [{"input": "Full."}, {"input": "Good."}, {"input": ""}]})
    full, good, empty = answer.json()["results"]
    assert full["error"]["retry_after"] == 3
    assert good["error"] is None
    assert "retry_after" not in empty["error"]


async def test_recordings_of_items_are_their_own(
    stand: Any, http: httpx.AsyncClient, make_wav: Callable[..., bytes]
) -> None:
    sent = [base64.b64encode(make_wav(seconds)).decode() for seconds in (1.0, 2.0)]
    items = [{"input": "Hi.", "ref_audio": audio, "ref_text": "Hello."} for audio in sent]
    answer = await http.post(BATCH, json={"model": "cloned", "items": items})
    assert answer.json()["succeeded"] == 2, answer.text
    encoded = [plan for plan, work in zip(stand.fake.plans, stand.fake.works, strict=True) if plan.payload is not None]
    assert sorted(len(plan.payload) for plan in encoded) == [24_000, 48_000]
    assert len({work.request_id for work in stand.fake.works}) == 4
    assert sum(isinstance(work, EncodeReference) for work in stand.fake.works) == 2


async def test_a_client_that_leaves_ends_all(stand: Any, serve: Any) -> None:
    stand.fake.line = asyncio.Event()
    async with serve(stand.app) as base, httpx.AsyncClient(base_url=base) as http:
        body = {**DEFAULTS, "items": [{"input": "Hi."}] * 32}
        request = asyncio.ensure_future(http.post(BATCH, json=body, timeout=30))
        async with asyncio.timeout(10):
            while stand.fake.waiting < 32:
                await asyncio.sleep(0.01)
        request.cancel()
        async with asyncio.timeout(10):
            while stand.fake.waiting:
                await asyncio.sleep(0.01)
    assert stand.fake.completed == []


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"items": None}, "items", "invalid_type"),
        ({"items": []}, "items", "invalid_value"),
        ({"items": [{"input": "x"}] * 33}, "items", "invalid_value"),
        ({"items": ["x"]}, "items.[0]", "invalid_type"),
        ({"items": {"input": "x"}}, "items", "invalid_type"),
        ({"pitch": 1}, "pitch", "unknown_parameter"),
        ({"input": "x"}, "input", "unknown_parameter"),
        ({"stream": True}, "stream", "unsupported_value"),
        ({"stream_format": "sse"}, "stream_format", "unsupported_value"),
        ({"items": [{"input": "x"}, {"input": "x", "pitch": 1}]}, "items.[1].pitch", "unknown_parameter"),
        ({"items": [{"input": "x", "stream": False}]}, "items.[0].stream", "unsupported_value"),
    ],
)
async def test_what_is_no_batch(
    stand: Any, http: httpx.AsyncClient, change: dict[str, Any], param: str, code: str
) -> None:
    answer = await http.post(BATCH, json={**DEFAULTS, "items": [{"input": "Hi."}], **change})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), answer.text
    assert stand.fake.works == []
