"""Bad input for everything that says how, and in whose voice: the right status, the field named, nothing kept."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import av
import httpx
import numpy as np
import pytest

SPEECH, VOICES, CONSENTS = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/voice_consents"
MISSING, UNKNOWN, UNSUPPORTED = "missing_required_parameter", "unknown_parameter", "unsupported_value"
VALUE, TYPE, AUDIO = "invalid_value", "invalid_type", "invalid_audio"
GONE = object()
"""Stands for a field that is left out."""

Row = tuple[dict[str, Any], int, str | None, str]


@pytest.fixture
def stand(able: Callable[..., Any]) -> Any:
    return able()


def check(answer: httpx.Response, status: int, param: str | None, code: str) -> str:
    """The error is in OpenAI's shape, names the field, and is made for people; returns its message."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), answer.text
    assert error["type"] == "invalid_request_error"
    assert param is None or param in error["message"] or status == 404
    assert not [word for word in ("pydantic", "NoneType", "Traceback", "None", "Input should") if word in answer.text]
    message: str = error["message"]
    return message


def merged(good: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**good, **change}.items() if value is not GONE}


def wav(samples: Any, rate_hz: int = 24_000, channels: int = 1, claim: int | None = None) -> bytes:
    """A WAVE file whose header may lie about its length."""
    data = np.asarray(samples, "<i2").tobytes()
    size = len(data) if claim is None else claim
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate_hz, 2 * channels * rate_hz, 2 * channels, 16)
    riff = struct.pack("<4sI4s", b"RIFF", min(36 + size, 2**32 - 1), b"WAVE")
    return riff + head + struct.pack("<4sI", b"data", size) + data


def encoded(seconds: float, container: str, codec: str) -> bytes:
    """Silence."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=24_000)
        stream.layout = "mono"
        samples = np.zeros((1, round(seconds * 24_000)), np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 24_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return buffer.getvalue()


def lying_mp3() -> bytes:
    """An hour by its header, half a second by its frames."""
    data = bytearray(encoded(0.5, "mp3", "mp3"))
    place = max(data.find(b"Xing"), data.find(b"Info"))
    data[place + 8 : place + 12] = (137_000).to_bytes(4, "big")
    return bytes(data)


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("voice.wav", bytes(50_000_000))
    return buffer.getvalue()


SECOND = np.ones(24_000, np.int16)
GOOD = wav(np.tile(SECOND, 2))
MEDIA: dict[str, tuple[bytes, str]] = {
    "empty": (b"", AUDIO),
    "text": (b"this is no sound", AUDIO),
    "zip bomb": (zip_bomb(), AUDIO),
    "gzip bomb": (gzip.compress(bytes(50_000_000)), AUDIO),
    "no samples": (wav([]), AUDIO),
    "header alone": (GOOD[:44], AUDIO),
    "length of a gigabyte over a moment": (wav(SECOND[:2400], claim=2**30), "audio_too_short"),
    "mp3 with a lying header": (lying_mp3(), "audio_too_short"),
    "10 minutes": (encoded(600, "flac", "flac"), "audio_too_long"),
    "30.1 s": (wav(np.tile(SECOND, 31)[: 241 * 3000]), "audio_too_long"),
    "0.9 s": (wav(SECOND[:21_600]), "audio_too_short"),
    "9 channels": (wav(np.tile(SECOND, 18), channels=9), AUDIO),
    "4 kHz": (wav(SECOND, rate_hz=4_000), AUDIO),
    "384 kHz": (wav(np.tile(SECOND, 32), rate_hz=384_000), AUDIO),
    "playlist": (b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n", AUDIO),
    "script of files": (b"ffconcat version 1.0\nfile /etc/passwd\n", AUDIO),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), AUDIO),
    "noise that begins like mp3": (b"\xff\xfb" + np.random.default_rng(2).bytes(9_000), AUDIO),
    "half a flac": (encoded(0.01, "flac", "flac")[:60], AUDIO),
}
"""Files that are no recording of a voice, and the code of their refusal."""


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


CLONED: dict[str, Any] = {"model": "cloned", "input": "Hi.", "ref_audio": b64(GOOD), "ref_text": "Hello."}
CLONED_ROWS: list[Row] = [
    ({"ref_audio": GONE, "ref_text": GONE}, 400, "ref_audio", MISSING),
    ({"ref_text": GONE}, 400, "ref_text", MISSING),
    ({"ref_text": " \n"}, 400, "ref_text", MISSING),
    ({"ref_text": 5}, 400, "ref_text", TYPE),
    ({"ref_text": "x" * 4097}, 400, "ref_text", VALUE),
    ({"ref_text": "Hello.", "x_vector_only_mode": True}, 400, "ref_text", VALUE),
    ({"x_vector_only_mode": "yes"}, 400, "x_vector_only_mode", TYPE),
    ({"ref_audio": GONE}, 400, "ref_text", VALUE),
    ({"ref_audio": GONE, "ref_text": GONE, "x_vector_only_mode": True}, 400, "x_vector_only_mode", VALUE),
    ({"ref_audio": 5}, 400, "ref_audio", TYPE),
    ({"ref_audio": []}, 400, "ref_audio", VALUE),
    ({"ref_audio": [b64(GOOD), b64(GOOD)]}, 400, "ref_audio", VALUE),
    ({"ref_audio": [5]}, 400, "ref_audio.[0]", TYPE),
    ({"ref_audio": ""}, 400, "ref_audio", AUDIO),
    ({"ref_audio": "not base64!"}, 400, "ref_audio", VALUE),
    ({"ref_audio": "Ünï"}, 400, "ref_audio", VALUE),
    ({"ref_audio": "/etc/passwd"}, 400, "ref_audio", VALUE),
    ({"ref_audio": "../../voice.wav"}, 400, "ref_audio", VALUE),
    ({"ref_audio": "file:///etc/passwd"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "http://example.com/a.wav"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "https://127.0.0.1/a.wav"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "https://169.254.169.254/latest/meta-data"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "https://[::1]/a.wav"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "https://a:b@example.com/a.wav"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "gopher://example.com/"}, 400, "ref_audio", "url_not_allowed"),
    ({"ref_audio": "data:audio/wav;base64,%%%"}, 400, "ref_audio", "invalid_url"),
    ({"ref_audio": "data:audio/wav"}, 400, "ref_audio", "invalid_url"),
    ({"ref_audio": b64(bytes(10 * 2**20 + 1))}, 400, "ref_audio", "audio_too_large"),
    ({"ref_audio": b64(bytes(11 * 2**20))}, 413, "ref_audio", "payload_too_large"),
    ({"speaker_embedding": [1.0]}, 400, "speaker_embedding", VALUE),
    ({"ref_audio": GONE, "speaker_embedding": [1.0]}, 400, "ref_text", VALUE),
    ({"ref_audio": GONE, "ref_text": GONE, "speaker_embedding": []}, 400, "speaker_embedding", VALUE),
    ({"ref_audio": GONE, "speaker_embedding": [0.0] * 8193}, 400, "speaker_embedding", VALUE),
    ({"ref_audio": GONE, "speaker_embedding": ["1"]}, 400, "speaker_embedding.[0]", TYPE),
    ({"ref_audio": GONE, "speaker_embedding": [True]}, 400, "speaker_embedding.[0]", TYPE),
    ({"ref_audio": GONE, "speaker_embedding": "[1]"}, 400, "speaker_embedding", TYPE),
    ({"voice": "vivian"}, 400, "voice", VALUE),
    ({"voice": "nobody", "ref_audio": GONE, "ref_text": GONE}, 400, "voice", VALUE),
    ({"voice": "../x", "ref_audio": GONE, "ref_text": GONE}, 400, "voice", VALUE),
    ({"voice": "voice_" + "0" * 24, "ref_audio": GONE, "ref_text": GONE}, 400, "voice", VALUE),
    ({"voice": "kept"}, 400, "voice", VALUE),
    ({"voice": "kept", "ref_audio": GONE, "speaker_embedding": [1.0]}, 400, "voice", VALUE),
    ({"task_type": "CustomVoice"}, 400, "task_type", UNSUPPORTED),
    ({"task_type": "base"}, 400, "task_type", VALUE),
    ({"instructions": "Whisper."}, 400, "instructions", UNSUPPORTED),
]

NAMED: dict[str, Any] = {"model": "named", "input": "Hi.", "voice": "ryan"}
NAMED_ROWS: list[Row] = [
    ({"ref_audio": b64(GOOD)}, 400, "ref_audio", UNSUPPORTED),
    ({"speaker_embedding": [1.0]}, 400, "speaker_embedding", UNSUPPORTED),
    ({"ref_text": "Hello."}, 400, "ref_text", UNSUPPORTED),
    ({"x_vector_only_mode": True}, 400, "x_vector_only_mode", UNSUPPORTED),
    ({"task_type": "Base"}, 400, "task_type", UNSUPPORTED),
    ({"voice": "kept"}, 400, "voice", UNSUPPORTED),
    ({"voice": "described"}, 400, "voice", UNSUPPORTED),
    ({"voice": "default"}, 400, "voice", VALUE),
    ({"language": ""}, 400, "language", VALUE),
    ({"language": "x" * 65}, 400, "language", VALUE),
    ({"language": ["en"]}, 400, "language", TYPE),
    ({"max_new_tokens": 0}, 400, "max_new_tokens", VALUE),
    ({"max_new_tokens": 8193}, 400, "max_new_tokens", VALUE),
    ({"max_new_tokens": 1.5}, 400, "max_new_tokens", TYPE),
    ({"initial_codec_chunk_frames": -1}, 400, "initial_codec_chunk_frames", VALUE),
    ({"initial_codec_chunk_frames": "1"}, 400, "initial_codec_chunk_frames", TYPE),
    ({"non_streaming_mode": 1}, 400, "non_streaming_mode", TYPE),
    ({"temperature": -0.1}, 400, "temperature", VALUE),
    ({"temperature": "hot"}, 400, "temperature", TYPE),
    ({"top_k": -1}, 400, "top_k", VALUE),
    ({"top_k": 2.5}, 400, "top_k", TYPE),
    ({"top_p": 0}, 400, "top_p", VALUE),
    ({"top_p": 1.01}, 400, "top_p", VALUE),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", VALUE),
    ({"subtalker_top_p": 2}, 400, "subtalker_top_p", VALUE),
    ({"extra_params": {}}, 400, "extra_params", UNKNOWN),
]

DESIGNED: dict[str, Any] = {"model": "designed", "input": "Hi.", "instructions": "An old man."}
DESIGNED_ROWS: list[Row] = [
    ({"instructions": GONE}, 400, "instructions", MISSING),
    ({"instructions": "  "}, 400, "instructions", MISSING),
    ({"voice": "described"}, 400, "instructions", VALUE),
    ({"voice": "kept"}, 400, "voice", UNSUPPORTED),
    ({"voice": "vivian"}, 400, "voice", VALUE),
    ({"ref_audio": b64(GOOD)}, 400, "ref_audio", UNSUPPORTED),
    ({"task_type": "Base"}, 400, "task_type", UNSUPPORTED),
]

TABLE = [
    *((CLONED, *row) for row in CLONED_ROWS),
    *((NAMED, *row) for row in NAMED_ROWS),
    *((DESIGNED, *row) for row in DESIGNED_ROWS),
    *(({"model": "tts-1", "input": "Hi."}, {name: value}, 400, name, UNSUPPORTED) for name, value in {
        "ref_audio": b64(GOOD), "speaker_embedding": [1.0], "task_type": "Base", "top_k": 0, "language": "en",
        "non_streaming_mode": True, "max_new_tokens": 5, "initial_codec_chunk_frames": 0,
    }.items()),
]  # fmt: skip


async def keep(http: httpx.AsyncClient) -> None:
    """Two voices that the tables speak of."""
    for body in (
        {"name": "kept", "speaker_embedding": [1.0], "consent": "x"},
        {"name": "described", "prompt": "An old woman."},
    ):
        assert (await http.post(VOICES, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("good", "change", "status", "param", "code"), TABLE, ids=[f"{r[0]['model']}-{r[3]}-{r[4]}" for r in TABLE]
)
async def test_speech(
    stand: Any, http: httpx.AsyncClient, good: Any, change: Any, status: int, param: str | None, code: str
) -> None:
    await keep(http)
    check(await http.post(SPEECH, json=merged(good, change)), status, param, code)
    assert stand.fake.works == [], "nothing was asked of any engine"
    assert (await http.post(SPEECH, json=good)).status_code == 200


@pytest.mark.parametrize("name", MEDIA)
async def test_media(stand: Any, http: httpx.AsyncClient, name: str) -> None:
    """The same file is refused alike wherever it comes in."""
    data, code = MEDIA[name]
    check(await http.post(SPEECH, json={**CLONED, "ref_audio": b64(data)}), 400, "ref_audio", code)
    file = ("voice.wav", data, "audio/wav")
    answer = await http.post(VOICES, data={"name": "x", "consent": "c"}, files={"audio_sample": file})
    check(answer, 400, "audio_sample", code)
    answer = await http.post(CONSENTS, data={"name": "x", "language": "en"}, files={"recording": file})
    check(answer, 400, "recording", code)
    assert stand.fake.works == []
    assert (await http.get(CONSENTS)).json()["data"] == []
    assert (await http.get(f"{VOICES}/x")).status_code == 404


async def test_three_channels_are_mixed(stand: Any, http: httpx.AsyncClient) -> None:
    parts = np.stack([SECOND * 3000, SECOND * 0, SECOND * 600], axis=1)
    data = wav(parts.reshape(-1), channels=3)
    assert (await http.post(SPEECH, json={**CLONED, "ref_audio": b64(data)})).status_code == 200
    assert set(stand.fake.plans[0].payload.tolist()) == {1200}


EMBEDDED: dict[str, Any] = {"name": "new", "consent": "given", "speaker_embedding": [0.5, 1.0]}
VOICE_ROWS: list[Row] = [
    ({"name": GONE}, 400, "name", MISSING),
    ({"name": ""}, 400, "name", VALUE),
    ({"name": 5}, 400, "name", TYPE),
    ({"name": "x" * 65}, 400, "name", VALUE),
    ({"name": "../../etc/passwd"}, 400, "name", VALUE),
    ({"name": "a/b"}, 400, "name", VALUE),
    ({"name": ".hidden"}, 400, "name", VALUE),
    ({"name": "a\u0000b"}, 400, "name", VALUE),
    ({"name": "a\nb"}, 400, "name", VALUE),
    ({"name": "Vivian"}, 400, "name", "reserved_voice_name"),
    ({"name": "HEART"}, 400, "name", "reserved_voice_name"),
    ({"name": "alloy"}, 400, "name", "reserved_voice_name"),
    ({"name": "default"}, 400, "name", "reserved_voice_name"),
    ({"name": "voice_1"}, 400, "name", "reserved_voice_name"),
    ({"name": "Kept"}, 409, "name", "voice_exists"),
    ({"consent": GONE}, 400, "consent", MISSING),
    ({"consent": ""}, 400, "consent", VALUE),
    ({"consent": " "}, 400, "consent", MISSING),
    ({"consent": True}, 400, "consent", TYPE),
    ({"consent": "cons_" + "0" * 24}, 400, "consent", "consent_not_found"),
    ({"speaker_embedding": GONE}, 400, "audio_sample", MISSING),
    ({"speaker_embedding": []}, 400, "speaker_embedding", VALUE),
    ({"speaker_embedding": [0.0] * 8193}, 400, "speaker_embedding", VALUE),
    ({"speaker_embedding": [None]}, 400, "speaker_embedding.[0]", TYPE),
    ({"ref_text": "Hello."}, 400, "ref_text", VALUE),
    ({"prompt": "Old."}, 400, "prompt", VALUE),
    ({"type": "audio_sample"}, 400, "audio_sample", MISSING),
    ({"type": "prompt"}, 400, "prompt", MISSING),
    ({"type": "song"}, 400, "type", VALUE),
    ({"type": "prompt", "prompt": " ", "speaker_embedding": GONE, "consent": GONE}, 400, "prompt", VALUE),
    ({"prompt": "Old.", "speaker_embedding": GONE}, 400, "consent", VALUE),
    ({"script_hint": "slow"}, 400, "script_hint", UNSUPPORTED),
    ({"model": "2026-10-08"}, 400, "model", VALUE),
    ({"description": "a", "speaker_description": "b"}, 400, "speaker_description", VALUE),
    ({"audio_sample": b64(GOOD)}, 400, "audio_sample", UNKNOWN),
    ({"pitch": 1}, 400, "pitch", UNKNOWN),
]


@pytest.mark.parametrize(("change", "status", "param", "code"), VOICE_ROWS, ids=[f"{r[2]}-{r[3]}" for r in VOICE_ROWS])
async def test_voices(http: httpx.AsyncClient, change: Any, status: int, param: str | None, code: str) -> None:
    await keep(http)
    before = (await http.get(VOICES)).json()
    check(await http.post(VOICES, json=merged(EMBEDDED, change)), status, param, code)
    assert (await http.get(VOICES)).json() == before
    assert (await http.post(VOICES, json=EMBEDDED)).status_code == 200


FILE = ("a.wav", GOOD, "audio/wav")
BOTH = {"name": "new", "consent": "c", "speaker_embedding": "[1]"}
FORM_ROWS: list[tuple[dict[str, str], dict[str, Any], int, str | None, str]] = [
    ({"name": "new"}, {"audio_sample": FILE}, 400, "consent", MISSING),
    ({"consent": "c"}, {"audio_sample": FILE}, 400, "name", MISSING),
    ({"name": "new", "consent": "c"}, {"recording": FILE}, 400, "recording", UNKNOWN),
    ({"name": "new", "consent": "c"}, {"audio_sample": FILE, "more": FILE}, 400, "more", UNKNOWN),
    ({"name": "new", "consent": "c", "pitch": "1"}, {"audio_sample": FILE}, 400, "pitch", UNKNOWN),
    ({"name": "new", "consent": "c", "audio_sample": "text"}, {"x": FILE}, 400, "audio_sample", TYPE),
    ({"name": "new", "consent": "c", "speaker_embedding": "[1"}, {}, 400, "speaker_embedding", VALUE),
    ({"name": "new", "consent": "c", "speaker_embedding": "1"}, {}, 400, "speaker_embedding", TYPE),
    ({"name": "new", "consent": "c", "speaker_embedding": "[NaN]"}, {}, 400, "speaker_embedding", VALUE),
    (BOTH, {"audio_sample": FILE}, 400, "speaker_embedding", VALUE),
    ({"name": "Ryan", "consent": "c"}, {"audio_sample": FILE}, 400, "name", "reserved_voice_name"),
    ({"name": "new", "consent": "c" * 257}, {"audio_sample": FILE}, 400, "consent", VALUE),
    ({"name": "new", "consent": "c", "ref_text": "x" * 4097}, {"audio_sample": FILE}, 400, "ref_text", VALUE),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "files", "status", "param", "code"), FORM_ROWS, ids=[str(r[3]) for r in FORM_ROWS])
async def test_forms(
    http: httpx.AsyncClient, fields: Any, files: Any, status: int, param: str | None, code: str
) -> None:
    parts = {**{name: (None, value) for name, value in fields.items()}, **files}
    check(await http.post(VOICES, files=parts), status, param, code)
    assert (await http.get(f"{VOICES}/new")).status_code == 404


CONSENT_ROWS: list[tuple[dict[str, str], dict[str, Any], int, str | None, str]] = [
    ({"name": "a"}, {"recording": FILE}, 400, "language", MISSING),
    ({"language": "en"}, {"recording": FILE}, 400, "name", MISSING),
    ({"name": "a", "language": "en"}, {}, 400, "recording", MISSING),
    ({"name": "a", "language": "english please"}, {"recording": FILE}, 400, "language", VALUE),
    ({"name": "a", "language": ""}, {"recording": FILE}, 400, "language", VALUE),
    ({"name": "../a", "language": "en"}, {"recording": FILE}, 400, "name", VALUE),
    ({"name": "a", "language": "en", "age": "5"}, {"recording": FILE}, 400, "age", UNKNOWN),
]


@pytest.mark.parametrize(
    ("fields", "files", "status", "param", "code"), CONSENT_ROWS, ids=[str(r[3]) for r in CONSENT_ROWS]
)
async def test_consents(
    http: httpx.AsyncClient, fields: Any, files: Any, status: int, param: str | None, code: str
) -> None:
    parts = {**{name: (None, value) for name, value in fields.items()}, **files}
    check(await http.post(CONSENTS, files=parts), status, param, code)
    assert (await http.get(CONSENTS)).json()["data"] == []


REQUEST_ROWS: list[tuple[str, str, dict[str, Any], int, str | None, str]] = [
    ("POST", VOICES, {"content": b"x", "headers": {"content-type": "text/plain"}}, 415, None, "unsupported_media_type"),
    ("POST", VOICES, {"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, None, "invalid_form"),
    ("POST", VOICES, {"content": b"[]", "headers": {"content-type": "application/json"}}, 400, None, "invalid_json"),
    ("POST", f"{VOICES}?x=1", {"json": EMBEDDED}, 400, "x", UNKNOWN),
    ("GET", f"{VOICES}/nobody", {}, 404, "voice", "voice_not_found"),
    ("GET", f"{VOICES}/..%2f..%2fetc", {}, 404, None, "unknown_url"),
    ("DELETE", f"{VOICES}/nobody", {}, 404, "voice", "voice_not_found"),
    ("DELETE", f"{VOICES}/alloy", {}, 400, "voice", "built_in_voice"),
    ("DELETE", f"{VOICES}/Vivian", {}, 400, "voice", "built_in_voice"),
    ("DELETE", f"{VOICES}/%00", {}, 404, "voice", "voice_not_found"),
    ("DELETE", VOICES, {}, 405, None, "method_not_allowed"),
    ("GET", f"{CONSENTS}?limit=0", {}, 400, "limit", VALUE),
    ("GET", f"{CONSENTS}?limit=many", {}, 400, "limit", VALUE),
    ("GET", f"{CONSENTS}?after=cons_1", {}, 400, "after", VALUE),
    ("GET", f"{CONSENTS}?before=x", {}, 400, "before", UNKNOWN),
    ("GET", f"{CONSENTS}/cons_*", {}, 404, "consent_id", "consent_not_found"),
    ("POST", f"{CONSENTS}/cons_1", {"json": {"name": "x"}}, 404, "consent_id", "consent_not_found"),
    ("POST", f"{CONSENTS}/cons_1", {"json": {}}, 400, "name", MISSING),
    ("POST", f"{CONSENTS}/cons_1", {"json": {"name": "x", "language": "en"}}, 400, "language", UNKNOWN),
    ("DELETE", f"{CONSENTS}/cons_1", {}, 404, "consent_id", "consent_not_found"),
]


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "param", "code"), REQUEST_ROWS, ids=[f"{r[0]}-{r[1]}" for r in REQUEST_ROWS]
)
async def test_requests(
    http: httpx.AsyncClient, method: str, path: str, options: Any, status: int, param: str | None, code: str
) -> None:
    answer = await http.request(method, path, **options)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error"), answer.text


async def test_a_refusal_says_what_the_model_can_do(http: httpx.AsyncClient) -> None:
    message = check(await http.post(SPEECH, json={**NAMED, "ref_audio": "x"}), 400, "ref_audio", UNSUPPORTED)
    assert "language" in message
    assert "temperature" in message
    message = check(await http.post(SPEECH, json={**NAMED, "task_type": "Base"}), 400, "task_type", UNSUPPORTED)
    assert "CustomVoice" in message
    body = {"model": "tts-1", "input": "Hi.", "top_k": 3}
    assert "honours no such field" in check(await http.post(SPEECH, json=body), 400, "top_k", UNSUPPORTED)
