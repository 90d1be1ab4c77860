"""Bad input of every kind: the right status, the field named, and the next good request works."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

SPEECH = "/v1/audio/speech"
CHAT = "/v1/chat/completions"
GOOD_SPEECH: dict[str, Any] = {"model": "tts-1", "input": "Good day.", "voice": "alloy", "response_format": "pcm"}
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
GOOD_CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [USER]}
AUDIO: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
MISSING, UNKNOWN, UNSUPPORTED = "missing_required_parameter", "unknown_parameter", "unsupported_value"
VALUE, TYPE = "invalid_value", "invalid_type"
JARGON = (
    *("Input ", "Input tag", "Extra inputs", "should", "after validation", "dictionary", "instance", "valid list"),
    *("allowed: False", "allowed: None", "allowed: True", "None", "discriminator", "<class", "Field required"),
)
"""Words of the validator and of Python, which mean nothing to somebody who wrote JSON."""
GONE = object()
"""Stands for a field that is left out."""


def image(kind: str = "image_url") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": kind, kind: {"url": "x"}}]}


def turn(role: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, **fields}]}


SPEECH_ROWS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"input": GONE}, 400, "input", MISSING),
    ({"model": GONE}, 400, "model", MISSING),
    ({"input": None}, 400, "input", TYPE),
    ({"input": 5}, 400, "input", TYPE),
    ({"input": ["a"]}, 400, "input", TYPE),
    ({"input": ""}, 400, "input", VALUE),
    ({"input": " \n\t"}, 400, "input", VALUE),
    ({"input": "x" * 4097}, 400, "input", "string_above_max_length"),
    ({"input": "word " * 210_000}, 400, "input", "string_above_max_length"),
    ({"model": 5}, 400, "model", TYPE),
    ({"model": "nobody-1"}, 404, "model", "model_not_found"),
    ({"model": ""}, 404, "model", "model_not_found"),
    ({"model": "gpt-4o"}, 400, "model", UNSUPPORTED),
    ({"voice": "nobody"}, 400, "voice", VALUE),
    ({"voice": {"id": "nobody"}}, 400, "voice", VALUE),
    ({"voice": {}}, 400, "voice.id", MISSING),
    ({"voice": {"id": 5}}, 400, "voice.id", TYPE),
    ({"voice": {"id": "alloy", "pitch": 2}}, 400, "voice.pitch", UNKNOWN),
    ({"voice": 5}, 400, "voice", TYPE),
    ({"voice": ["alloy"]}, 400, "voice", TYPE),
    ({"response_format": "ogg"}, 400, "response_format", VALUE),
    ({"response_format": 3}, 400, "response_format", VALUE),
    ({"speed": 0.2}, 400, "speed", VALUE),
    ({"speed": 4.01}, 400, "speed", VALUE),
    ({"speed": -1}, 400, "speed", VALUE),
    ({"speed": "1"}, 400, "speed", TYPE),
    ({"speed": True}, 400, "speed", TYPE),
    ({"stream_format": "chunks"}, 400, "stream_format", VALUE),
    ({"stream": "yes"}, 400, "stream", TYPE),
    ({"stream": False, "stream_format": "sse"}, 400, "stream", VALUE),
    ({"instructions": "Whisper."}, 400, "instructions", UNSUPPORTED),
    ({"seed": 1.5}, 400, "seed", TYPE),
    ({"seed": "1"}, 400, "seed", TYPE),
    ({"seed": 2**63}, 400, "seed", VALUE),
    ({"seed": 10**30}, 400, "seed", VALUE),
    ({"response_format": "mp3", "sample_rate": 16_000}, 400, "sample_rate", UNSUPPORTED),
    ({"response_format": "aac", "sample_rate": 8000}, 400, "sample_rate", UNSUPPORTED),
    ({"sample_rate": 12345}, 400, "sample_rate", VALUE),
    ({"sample_rate": "24000"}, 400, "sample_rate", VALUE),
    ({"language": "en"}, 400, "language", UNSUPPORTED),
    ({"temperature": 1}, 400, "temperature", UNSUPPORTED),
    ({"pitch": 1}, 400, "pitch", UNKNOWN),
]

CHAT_ROWS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"messages": GONE}, 400, "messages", MISSING),
    ({"messages": []}, 400, "messages", VALUE),
    ({"messages": "Hi"}, 400, "messages", TYPE),
    ({"messages": ["Hi"]}, 400, "messages.[0]", TYPE),
    (turn("user", {"content": "word " * 210_000}), 400, "messages", "string_above_max_length"),
    ({"messages": [USER] * 20_000}, 400, "messages", "string_above_max_length"),
    (turn("user", {"content": "a", "name": "n" * 65}), 400, "messages.[0].name", VALUE),
    ({"stop": "s" * 513}, 400, "stop", VALUE),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, 400, "logit_bias", VALUE),
    ({"messages": [{"content": "Hi"}]}, 400, "messages.[0].role", MISSING),
    ({"messages": [USER, {"role": "robot", "content": "Hi"}]}, 400, "messages.[1].role", VALUE),
    (turn("user", {}), 400, "messages.[0].content", MISSING),
    (turn("user", {"content": None}), 400, "messages.[0].content", TYPE),
    (turn("user", {"content": 5}), 400, "messages.[0].content", TYPE),
    (turn("user", {"content": []}), 400, "messages.[0].content", VALUE),
    ({"messages": [{**USER, "mood": "good"}]}, 400, "messages.[0].mood", UNKNOWN),
    ({"messages": [USER, image()]}, 400, "messages.[1].content.[1]", UNSUPPORTED),
    ({"messages": [image("input_audio")]}, 400, "messages.[0].content.[1]", UNSUPPORTED),
    ({"messages": [image("video_url")]}, 400, "messages.[0].content.[1]", UNSUPPORTED),
    (
        {"messages": [{"role": "user", "content": [{"type": "song"}]}]},
        400,
        "messages.[0].content.[0].type",
        VALUE,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages.[0].content.[0].text",
        MISSING,
    ),
    (turn("assistant", {}), 400, "messages.[0].content", MISSING),
    (
        {"messages": [{"role": "assistant", "audio": {"id": "audio_0"}}]},
        400,
        "messages.[0].audio.id",
        "audio_not_found",
    ),
    (turn("assistant", {"audio": {}}), 400, "messages.[0].audio.id", MISSING),
    (
        {"messages": [{"role": "assistant", "content": "a", "audio": {"id": "b"}}]},
        400,
        "messages.[0].content",
        VALUE,
    ),
    (
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
        400,
        "messages.[0].tool_calls",
        UNSUPPORTED,
    ),
    (turn("tool", {"content": "a"}), 400, "messages.[0].tool_call_id", MISSING),
    ({"model": "nobody-1"}, 404, "model", "model_not_found"),
    ({"model": "tts-1"}, 400, "model", UNSUPPORTED),
    ({"temperature": 2.1}, 400, "temperature", VALUE),
    ({"temperature": "1"}, 400, "temperature", TYPE),
    ({"top_p": 1.1}, 400, "top_p", VALUE),
    ({"n": 0}, 400, "n", VALUE),
    ({"n": 9}, 400, "n", VALUE),
    ({"n": 1.0}, 400, "n", TYPE),
    ({"stop": ["a"] * 5}, 400, "stop", VALUE),
    ({"stop": ""}, 400, "stop", VALUE),
    ({"stop": ["a", 5]}, 400, "stop.[1]", TYPE),
    ({"max_tokens": 0}, 400, "max_tokens", VALUE),
    ({"max_tokens": 1025}, 400, "max_tokens", VALUE),
    ({"max_completion_tokens": 5000}, 400, "max_completion_tokens", VALUE),
    ({"max_tokens": 5, "max_completion_tokens": 5}, 400, "max_tokens", VALUE),
    ({"frequency_penalty": -2.5}, 400, "frequency_penalty", VALUE),
    ({"presence_penalty": 3}, 400, "presence_penalty", VALUE),
    ({"logit_bias": {"cat": 1}}, 400, "logit_bias.cat", VALUE),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias.5", VALUE),
    ({"logit_bias": [1]}, 400, "logit_bias", TYPE),
    ({"top_logprobs": 2}, 400, "top_logprobs", VALUE),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", VALUE),
    ({"logprobs": 3}, 400, "logprobs", TYPE),
    ({"stream": 1}, 400, "stream", TYPE),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", VALUE),
    ({"stream": True, "stream_options": {"every": 2}}, 400, "stream_options.every", UNKNOWN),
    ({"modalities": []}, 400, "modalities", VALUE),
    ({"modalities": ["video"]}, 400, "modalities.[0]", VALUE),
    ({"modalities": ["text", "text"]}, 400, "modalities", VALUE),
    ({**AUDIO, "modalities": ["audio"]}, 400, "modalities", VALUE),
    ({**AUDIO, "audio": GONE}, 400, "audio", MISSING),
    ({**AUDIO, "modalities": GONE}, 400, "audio", VALUE),
    ({**AUDIO, "audio": {"voice": "alloy"}}, 400, "audio.format", MISSING),
    ({**AUDIO, "audio": {"voice": "alloy", "format": "pcm"}}, 400, "audio.format", VALUE),
    ({**AUDIO, "audio": {"voice": "nobody", "format": "wav"}}, 400, "audio.voice", VALUE),
    ({**AUDIO, "stream": True}, 400, "audio.format", UNSUPPORTED),
    ({"response_format": {"type": "json_object"}}, 400, "response_format", UNSUPPORTED),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools", UNSUPPORTED),
    ({"tool_choice": "required"}, 400, "tool_choice", UNSUPPORTED),
    ({"functions": [{"name": "f"}]}, 400, "functions", UNSUPPORTED),
    ({"store": True}, 400, "store", UNSUPPORTED),
    ({"store": 0}, 400, "store", UNSUPPORTED),
    ({"service_tier": "flex"}, 400, "service_tier", UNSUPPORTED),
    ({"reasoning_effort": "high"}, 400, "reasoning_effort", UNSUPPORTED),
    ({"prediction": {"type": "content", "content": "a"}}, 400, "prediction", UNSUPPORTED),
    ({"web_search_options": {}}, 400, "web_search_options", UNSUPPORTED),
    ({"user": 5}, 400, "user", TYPE),
    ({"metadata": {"k" * 65: "v"}}, 400, "metadata." + "k" * 65, VALUE),
    ({"top_k": 5}, 400, "top_k", UNKNOWN),
    ({"input": "Hi"}, 400, "input", UNKNOWN),
]

RAW_ROWS: list[tuple[bytes, str, int, str]] = [
    (b"", "application/json", 400, "invalid_json"),
    (b"{", "application/json", 400, "invalid_json"),
    (b"[]", "application/json", 400, "invalid_json"),
    (b"null", "application/json", 400, "invalid_json"),
    (b'"text"', "application/json", 400, "invalid_json"),
    (b'{"model": NaN}', "application/json", 400, "invalid_json"),
    (b'{"speed": Infinity}', "application/json", 400, "invalid_json"),
    (b'{"speed": 1e999}', "application/json", 400, "invalid_json"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", 400, "invalid_json"),
    (b'{"input": "\xff\xfe"}', "application/json", 400, "invalid_utf8"),
    (b'\xef\xbb\xbf{"input": "a"}', "application/json", 400, "invalid_json"),
    (b'{"model": "a", "model": "b"}', "application/json", 400, "duplicate_key"),
    (b'{"a":' * 33 + b"1" + b"}" * 33, "application/json", 400, "json_too_deep"),
    (b"[" * 100_000, "application/json", 400, "json_too_deep"),
    (b"{'model': 'a'}", "application/json", 400, "invalid_json"),
    (b"model=a", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    (b'{"model": "a"}', "text/plain", 415, "unsupported_media_type"),
    (b'{"model": "a"}', "", 415, "unsupported_media_type"),
    (b" " * (16 * 1024 * 1024 + 1), "application/json", 413, "payload_too_large"),
]


def merged(good: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**good, **change}.items() if value is not GONE}


async def check_good(http: httpx.AsyncClient) -> None:
    for path, body in ((SPEECH, GOOD_SPEECH), (CHAT, GOOD_CHAT)):
        assert (await http.post(path, json=body)).status_code == 200


def check(answer: httpx.Response, status: int, param: str | None, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), answer.text
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert not [word for word in JARGON if word in error["message"]]
    if param:
        assert param in error["message"] or error["code"] == "model_not_found" or "The model" in error["message"]


@pytest.mark.parametrize(("change", "status", "param", "code"), SPEECH_ROWS, ids=[str(r[2]) for r in SPEECH_ROWS])
async def test_speech(
    stand: Any, http: httpx.AsyncClient, change: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    check(await http.post(SPEECH, json=merged(GOOD_SPEECH, change)), status, param, code)
    assert stand.fake.works == []
    await check_good(http)


@pytest.mark.parametrize(("change", "status", "param", "code"), CHAT_ROWS, ids=[str(r[2]) for r in CHAT_ROWS])
async def test_chat(
    stand: Any, http: httpx.AsyncClient, change: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    check(await http.post(CHAT, json=merged(GOOD_CHAT, change)), status, param, code)
    assert stand.fake.works == []
    await check_good(http)


@pytest.mark.parametrize("path", [SPEECH, CHAT])
@pytest.mark.parametrize(
    ("body", "media_type", "status", "code"), RAW_ROWS, ids=[f"{r[3]}-{r[0][:12]!r}" for r in RAW_ROWS]
)
async def test_raw_bodies(
    http: httpx.AsyncClient, path: str, body: bytes, media_type: str, status: int, code: str
) -> None:
    answer = await http.post(path, content=body, headers={"content-type": media_type} if media_type else {})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["type"] == "invalid_request_error"
    await check_good(http)


async def test_the_message_lists_what_there_is(http: httpx.AsyncClient) -> None:
    voice = await http.post(SPEECH, json={**GOOD_SPEECH, "voice": "nobody"})
    assert "shimmer" in voice.json()["error"]["message"]
    form = await http.post(SPEECH, json={**GOOD_SPEECH, "response_format": "ogg"})
    assert form.json()["error"]["message"].endswith("must be one of: mp3, opus, aac, flac, wav, pcm.")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": []}, "must not be empty"),
        ({"stop": ""}, "must not be empty"),
        ({"modalities": []}, "must not be empty"),
        ({"messages": [{**USER, "role": "robot"}]}, "must be one of: system, developer, user, assistant, tool"),
        ({"messages": ["Hi"]}, "must be an object"),
        ({"messages": "Hi"}, "must be an array"),
        ({"modalities": ["video"]}, "must be one of: text, audio"),
        ({"n": 9}, "must be less than or equal to 8"),
        ({"n": 1.5}, "must be an integer"),
        ({"temperature": "1"}, "must be a number"),
        ({"stream": 1}, "must be true or false"),
        ({"stop": ["a"] * 5}, "must not have more than 4 entries"),
        ({"stop": "s" * 513}, "must not have more than 512 characters"),
        ({"store": True}, "this server cannot honour it; allowed: false"),
        ({"tools": [{}]}, "this server cannot honour it; allowed: []"),
        ({"tool_choice": "required"}, 'this server cannot honour it; allowed: "none", "auto"'),
        ({"prediction": {}}, "this server cannot honour it; allowed: null"),
    ],
    ids=str,
)
async def test_the_reason_is_said_in_the_words_of_json(
    http: httpx.AsyncClient, change: dict[str, Any], reason: str
) -> None:
    message = (await http.post(CHAT, json={**GOOD_CHAT, **change})).json()["error"]["message"]
    assert message.partition(": ")[2] == f"{reason}."


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/v1/audio/speech/", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "unknown_url"),
        ("HEAD", "/v1/audio/speech", 405, None),
        ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nobody-1", 404, "model_not_found"),
        ("GET", "/v1/audio/voices?model=nobody-1", 404, "model_not_found"),
        ("GET", "/v1/audio/voices?page=2", 400, "unknown_parameter"),
    ],
)
async def test_paths_and_methods(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str | None
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert code is None or answer.json()["error"]["code"] == code
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("path", [SPEECH, CHAT])
async def test_nulls_mean_the_same_as_nothing(http: httpx.AsyncClient, path: str) -> None:
    good = GOOD_SPEECH if path == SPEECH else GOOD_CHAT
    fields = ["seed", "speed", "stream_format", "instructions"] if path == SPEECH else ["n", "stop", "tools", "audio"]
    answer = await http.post(path, json={**good, **dict.fromkeys(fields)})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "functions": [], "tool_choice": "auto", "function_call": "none"},
        {"parallel_tool_calls": True, "verbosity": "medium", "service_tier": "default"},
        {"prompt_cache_key": "k", "prompt_cache_retention": "in_memory", "logit_bias": {}},
        {"stop": [], "modalities": ["text"], "response_format": {"type": "text"}},
    ],
)
async def test_values_that_ask_for_nothing_are_accepted(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await http.post(CHAT, json={**GOOD_CHAT, **fields})
    assert answer.status_code == 200, answer.text


async def test_content_type_with_a_charset(http: httpx.AsyncClient) -> None:
    body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "\\u00e9\xc3\xa9"}]}'
    answer = await http.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"content-encoding": "gzip"}, "Content-Encoding 'gzip'"),
        ({"content-encoding": "identity, br"}, "Content-Encoding 'identity, br'"),
        ({"content-type": "application/json; charset=latin-1"}, "charset 'latin-1' in Content-Type"),
        ({"content-type": 'application/json; a=b; charset="UTF-16"'}, "charset 'UTF-16' in Content-Type"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [SPEECH, CHAT])
async def test_bodies_in_another_coding(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], named: str
) -> None:
    answer = await http.post(path, content=b"\x1f\x8b", headers={"content-type": "application/json", **headers})
    check(answer, 415, None, "unsupported_media_type")
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "Identity"},
        {"content-type": 'application/json; charset="UTF-8"'},
        {"content-type": "application/json;charset=utf8"},
        {"content-type": "application/json;"},
    ],
    ids=str,
)
async def test_headers_that_say_nothing_new(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}'
    answer = await http.post(CHAT, content=body, headers={"content-type": "application/json", **headers})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", [SPEECH, CHAT])
async def test_half_a_surrogate_pair_is_no_text(http: httpx.AsyncClient, path: str) -> None:
    field = b'"input": "\\ud800"' if path == SPEECH else b'"messages": [{"role": "user", "content": "\\ud800"}]'
    answer = await http.post(path, content=b'{"model": "m", %s}' % field, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == ("input" if path == SPEECH else "messages.[0].content")
    await check_good(http)


async def test_names_of_unknown_fields_are_cut(http: httpx.AsyncClient) -> None:
    answer = await http.post(SPEECH, json={**GOOD_SPEECH, "x" * 10_000: 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x" * 200
    assert len(answer.content) < 1000
