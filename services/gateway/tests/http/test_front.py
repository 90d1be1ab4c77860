"""What happens to every request: keys, ids, CORS, limits, logs, health, documentation."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from omnistage.contracts import AnyWork
from omnistage.errors import StageFailed, Unauthenticated
from omnistage.observability import Tracing, names, setup_logging
from omnistage_gateway.dispatch.interface import AudioPiece, Event
from omnistage_gateway.keyring import Keyring
from omnistage_gateway.limits import Limits

SPEECH = "/v1/audio/speech"
SPEAK = {"model": "tts-1", "voice": "alloy", "input": "A text.", "response_format": "pcm"}
ASK = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
CANARY = "xylophonecanary"


def over(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.fixture
def keyed(make_stand: Callable[..., Any]) -> Any:
    return make_stand(keyring=Keyring({"ann": "sk-right", "bob": "sk-other"}))


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer sk-wrong", "Basic sk-right", "sk-right", "Bearer sk-right2"]
)
async def test_wrong_keys(keyed: Any, header: str | None) -> None:
    async with over(keyed.app) as http:
        answer = await http.post(SPEECH, json=SPEAK, headers={} if header is None else {"authorization": header})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == ("invalid_api_key" if header else "missing_api_key")
        assert "sk-" not in answer.text
        good = await http.post(SPEECH, json=SPEAK, headers={"authorization": "Bearer sk-right"})
    assert good.status_code == 200
    assert [plan.tenant for plan in keyed.fake.plans] == ["ann"]


async def test_right_and_wrong_key_through_the_sdk(keyed: Any, serve: Any) -> None:
    async with serve(keyed.app) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-other", max_retries=0) as sdk:
            await sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hi")
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-none", max_retries=0) as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.models.list()
    assert [plan.tenant for plan in keyed.fake.plans] == ["bob"]


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/openapi.json"])
async def test_open_without_a_key(keyed: Any, path: str) -> None:
    async with over(keyed.app) as http:
        assert (await http.get(path)).status_code == 200


def test_a_keyring_without_keys_lets_everybody_in() -> None:
    assert Keyring().tenant(None) == Keyring({}).tenant("Bearer x") == "anonymous"
    with pytest.raises(Unauthenticated):
        Keyring({"a": "b"}).tenant("Bearer \udcff")


async def test_request_ids(http: httpx.AsyncClient, stand: Any) -> None:
    made = await http.post(SPEECH, json=SPEAK)
    assert made.headers["x-request-id"] == stand.fake.works[0].request_id
    assert len(made.headers["x-request-id"]) == 32
    for _ in range(2):
        kept = await http.post(SPEECH, json=SPEAK, headers={"x-request-id": "Trace_1.a:b-2"})
        assert kept.headers["x-request-id"] == "Trace_1.a:b-2"
    assert len({work.request_id for work in stand.fake.works}) == 3
    for insane in ("a b", "x" * 200, '"><script>'):
        answer = await http.get("/v1/nothing", headers={"x-request-id": insane})
        assert answer.headers["x-request-id"] != insane
        assert len(answer.headers["x-request-id"]) == 32


async def test_cors(make_stand: Callable[..., Any]) -> None:
    stand = make_stand(cors_origins=["https://app.example"], keyring=Keyring({"a": "k"}))
    async with over(stand.app) as http:
        asks = {
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = await http.options(SPEECH, headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        refused = await http.post(SPEECH, json=SPEAK, headers={"origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()
        other = await http.options(SPEECH, headers={**asks, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_without_cors_nothing_is_allowed(http: httpx.AsyncClient) -> None:
    answer = await http.get("/health", headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("declared", [True, False])
async def test_body_limit(make_stand: Callable[..., Any], serve: Any, declared: bool) -> None:
    stand = make_stand(limits=Limits(body_bytes=1000))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b'{"input": "' + b"x" * 89
            await asyncio.sleep(0)

    async with serve(stand.app) as url, httpx.AsyncClient() as http:
        answer = await http.post(
            url + SPEECH, content=b"x" * 1001 if declared else pieces(), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "payload_too_large"
        assert (await http.post(url + SPEECH, json=SPEAK)).status_code == 200


async def test_models_through_the_sdk(client: openai.AsyncOpenAI) -> None:
    served = [model async for model in client.models.list()]
    assert [model.id for model in served] == ["hibari-heart", "smollm2"]
    assert all((model.object, model.owned_by) == ("model", "omnistage") and model.created > 10**9 for model in served)
    for name in ("tts-1", "hibari-heart"):
        model = await client.models.retrieve(name)
        assert model.id == "hibari-heart"
        assert model.model_dump()["aliases"] == ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
        assert model.model_dump()["modalities"] == ["audio"]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("org/nobody")
    assert caught.value.code == "model_not_found"


async def test_voices(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/audio/voices")).json()
    assert (listed["object"], listed["has_more"], len(listed["data"])) == ("list", False, 28)
    one = (await http.get("/v1/audio/voices", params={"model": "gpt-4o"})).json()["data"]
    assert {voice["model"] for voice in one} == {"smollm2"}
    assert [voice["id"] for voice in one if voice["default"]] == ["heart"]
    assert one[1] == {
        "id": "alloy",
        "object": "audio.voice",
        "name": "alloy",
        "type": "built_in",
        "model": "smollm2",
        "speaks_as": "heart",
        "default": False,
    }


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models"])
async def test_head_says_what_get_would(url: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        head, got = await http.head(path), await http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


async def test_what_is_not_ready_is_not_listed(stand: Any, http: httpx.AsyncClient) -> None:
    assert (await http.get("/ready")).json() == {"ready": True, "detail": ""}
    stand.fake.unready = "smollm2"
    answer = await http.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "detail": "smollm2 is loading"})
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == ["hibari-heart"]
    assert (await http.get("/v1/models/gpt-4o")).status_code == 503
    assert {voice["model"] for voice in (await http.get("/v1/audio/voices")).json()["data"]} == {"hibari-heart"}
    assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
async def test_no_page_that_loads_scripts_from_elsewhere(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_root_and_openapi(http: httpx.AsyncClient) -> None:
    about = (await http.get("/")).json()
    assert (about["name"], about["openapi"], "docs" in about) == ("omnistage", "/openapi.json", False)
    document = (await http.get(about["openapi"])).json()
    text = json.dumps(document)
    shapes = document["components"]["schemas"]
    body = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/SpeechRequest"}
    assert shapes["SpeechRequest"]["additionalProperties"] is False
    references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references <= set(shapes)


async def test_a_bug_is_a_500_in_the_same_shape_with_an_id(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if work:
            raise KeyError(CANARY)
        yield AudioPiece(np.zeros(1, np.int16), 24_000)

    stand.fake.script = script
    for path, body in ((SPEECH, SPEAK), ("/v1/chat/completions", ASK)):
        answer = await http.post(path, json=body)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert CANARY not in answer.text
        assert answer.headers["x-request-id"]


@pytest.fixture
def logs() -> Any:
    """Everything that is logged anywhere, as it would be written."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    setup_logging("debug", True, "gateway", "test", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


async def bring_voices(http: httpx.AsyncClient) -> None:
    """Nine requests that tell of voices."""
    voice = {"name": CANARY, "consent": CANARY, "speaker_embedding": [1.0], "description": CANARY}
    for _ in range(2):
        await http.post("/v1/audio/voices", json=voice)
    for method in ("GET", "DELETE", "DELETE"):
        await http.request(method, f"/v1/audio/voices/{CANARY}")
    recording = {"recording": (CANARY, CANARY.encode(), CANARY)}
    await http.post("/v1/audio/voice_consents", data={"name": CANARY, "language": "en"}, files=recording)
    for reference in (CANARY, f"https://{CANARY}.invalid/{CANARY}", f"data:{CANARY}"):
        await http.post(SPEECH, json={**SPEAK, "input": CANARY, "ref_audio": reference, "ref_text": CANARY})


async def test_no_log_holds_what_clients_say(stand: Any, serve: Any, logs: io.StringIO) -> None:
    async def broken(work: AnyWork) -> AsyncIterator[Event]:
        if work.request_id:
            raise StageFailed(f"could not say {CANARY}")
        yield AudioPiece(np.zeros(1, np.int16), 24_000)

    async def buggy(work: AnyWork) -> AsyncIterator[Event]:
        if work.request_id:
            raise ValueError(CANARY)
        yield AudioPiece(np.zeros(1, np.int16), 24_000)

    said = {**SPEAK, "input": CANARY}
    asked = {**ASK, "messages": [{"role": "user", "content": CANARY}]}
    extras: list[dict[str, Any]] = [{}, {CANARY: 1}, {"model": CANARY}, {"stream": True}, {"user": CANARY}]
    paths = (CANARY, f"v1/models/{CANARY}", f"v1/audio/voices?model={CANARY}", f"v1/models?{CANARY}=1")
    async with serve(stand.app) as url, httpx.AsyncClient(base_url=url) as http:
        for script in (stand.fake.script, broken, buggy):
            stand.fake.script = script
            for path, body in ((SPEECH, said), ("/v1/chat/completions", asked)):
                for extra in (*extras, {"voice": CANARY}):
                    await http.post(path, json={**body, **extra})
                await http.post(path, content=CANARY, headers={"content-type": "application/json"})
                await http.post(path, content=f'{{"{CANARY}": 1, "{CANARY}": 2}}', headers={"content-type": "text/x"})
        for path in paths:
            await http.get(f"/{path}", headers={"authorization": f"Bearer {CANARY}"})
        await bring_voices(http)
    written = logs.getvalue()
    assert CANARY not in written
    lines = [json.loads(line) for line in written.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) == 3 * 2 * 8 + 4 + 9
    first = requests[0]
    assert (first["endpoint"], first["status"], first["model"]) == (SPEECH, 200, "hibari-heart")
    assert first["request_id"]
    assert first["sent_bytes"] > 1000
    assert any(line["event"] == "request crashed" for line in lines)


async def test_one_span_for_each_request_under_the_client_s_own(make_stand: Callable[..., Any]) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stand = make_stand(tracing=Tracing(provider.get_tracer("t"), provider))
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with over(stand.app) as http:
        await http.post(SPEECH, json=SPEAK, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    (span,) = exporter.get_finished_spans()
    assert span.name == names.SPAN_REQUEST
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == trace
    assert span.attributes is not None
    assert span.attributes[names.ATTR_ENDPOINT] == SPEECH
    assert span.attributes[names.ATTR_STATUS] == 200
    provider.shutdown()
