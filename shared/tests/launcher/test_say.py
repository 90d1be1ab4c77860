"""`omnistage say` against a small HTTP server that speaks the API's shapes."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from omnistage.launcher.faults import LauncherError
from omnistage.launcher.say import address_given, format_of, say, wav_seconds, with_sizes


def streamed_wav(samples: int, size: int = 0xFFFFFFFF) -> bytes:
    """A WAV as a server streams it: the sizes are not known when the head goes out."""
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", size, b"WAVE", b"fmt ", 16, 1, 1, 24000, 48000, 2, 16, b"data", size
    )
    return head + b"\x01\x02" * samples


class Api(BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, bytes]] = (200, b"")
    seen: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append({"path": self.path, "key": self.headers.get("Authorization"), **json.loads(body)})
        status, data = self.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    Api.seen.clear()
    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


REQUEST: dict[str, object] = {"input": "Hi", "model": "m", "voice": "v", "response_format": "wav"}


def test_speech_is_written_and_measured(api: str, tmp_path: Path) -> None:
    Api.answer = (200, streamed_wav(12_000))
    progress: list[int] = []
    spoken = say(api, REQUEST, tmp_path / "f.wav", api_key="k", progress=progress.append)
    assert Api.seen == [{"path": "/v1/audio/speech", "key": "Bearer k", **REQUEST}]
    assert spoken.audio_s == 0.5
    assert spoken.nbytes == progress[-1] == 44 + 24_000
    assert 0 < spoken.first_byte_s <= spoken.total_s
    assert spoken.summary().startswith("0.50 s of audio, first audio after ")
    with wave.open(str(tmp_path / "f.wav")) as file:
        assert (file.getnframes(), file.getframerate()) == (12_000, 24_000)


def test_other_formats_are_written_as_they_are(api: str, tmp_path: Path) -> None:
    Api.answer = (200, b"ID3 mp3 bytes")
    spoken = say(api, REQUEST | {"response_format": "mp3"}, tmp_path / "f.mp3", api_key=None, progress=lambda _: None)
    assert (tmp_path / "f.mp3").read_bytes() == b"ID3 mp3 bytes"
    assert Api.seen[0]["key"] is None
    assert spoken.audio_s is None
    assert spoken.summary().startswith("13 bytes, ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, b'{"error": {"message": "no such voice", "param": "voice"}}'), "no such voice (voice)"),
        ((503, b'{"error": {"message": "busy", "param": null}}'), "busy"),
        ((502, b"<html>"), "HTTP 502"),
    ],
)
def test_refusals_are_said_and_nothing_is_written(
    api: str, tmp_path: Path, answer: tuple[int, bytes], reason: str
) -> None:
    Api.answer = answer
    with pytest.raises(LauncherError) as refused:
        say(api, REQUEST, tmp_path / "f.wav", api_key=None, progress=lambda _: None)
    assert refused.value.message == reason
    assert not (tmp_path / "f.wav").exists()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"^nobody answers at http://127\.0\.0\.1:1: .*refused"):
        say("http://127.0.0.1:1", REQUEST, tmp_path / "f.wav", api_key=None, progress=lambda _: None)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://host", "http://", "http://host:port"])
def test_an_address_has_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(LauncherError, match="is no address"):
        address_given(url)


def test_an_address_may_be_that_of_the_api() -> None:
    assert address_given("http://host:1/v1/") == address_given("http://host:1") == "http://host:1"


@pytest.mark.parametrize("audio_format", ["wav", "pcm"])
def test_speech_goes_to_standard_output_and_words_do_not(api: str, audio_format: str) -> None:
    data = streamed_wav(12_000)
    Api.answer = (200, data)
    command = [sys.executable, "-m", "omnistage.launcher", "say", "Hi", "-o", "-", "--url", api]
    chosen = ["--format", "pcm"] if audio_format == "pcm" else []
    told = subprocess.run([*command, *chosen], capture_output=True, timeout=60, check=True)
    assert told.stdout == data
    assert Api.seen[0]["response_format"] == audio_format
    assert len(told.stderr.decode().splitlines()) == 1
    assert told.stderr.startswith(b"-: ")


def test_without_a_terminal_there_is_one_line(api: str, tmp_path: Path) -> None:
    Api.answer = (200, streamed_wav(12_000))
    path = tmp_path / "f.wav"
    command = [sys.executable, "-m", "omnistage.launcher", "say", "Hi", "-o", str(path), "--url", api]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert told.stderr == ""
    assert told.stdout.startswith(f"{path}: 0.50 s of audio")
    assert told.stdout.count("\n") == 1


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF - 8])
def test_unknown_sizes_are_filled_in(size: int) -> None:
    fixed = with_sizes(streamed_wav(2400, size))
    assert struct.unpack_from("<I", fixed, 4)[0] == len(fixed) - 8
    assert wav_seconds(fixed) == 0.1


def test_good_files_stay_as_they_are() -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(b"\0\0" * 100)
    good = buffer.getvalue() + b"LIST\x04\0\0\0abcd"
    assert with_sizes(good) == good
    assert with_sizes(b"not a wav file at all") == b"not a wav file at all"


def test_the_suffix_says_the_format_unless_told_otherwise() -> None:
    assert format_of(Path("a.mp3"), None) == "mp3"
    assert format_of(Path("a.OGG"), None) == "opus"
    assert format_of(Path("a.bin"), "pcm") == "pcm"
    assert (format_of(None, None), format_of(None, "opus")) == ("wav", "opus")
    for path, wanted in ((Path("a.bin"), None), (Path("a"), None), (Path("a.wav"), "midi")):
        with pytest.raises(LauncherError, match="unknown audio format"):
            format_of(path, wanted)
