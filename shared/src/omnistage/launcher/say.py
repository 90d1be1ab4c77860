"""`omnistage say`: speech into a file, through the HTTP API like any other client."""

from __future__ import annotations

import io
import struct
import sys
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from omnistage.launcher.faults import LauncherError

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
_OTHER_SUFFIXES = {"ogg": "opus", "m4a": "aac", "wave": "wav", "raw": "pcm"}
_PCM_BYTES_PER_S = 24_000 * 2
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
_TIMEOUT = httpx.Timeout(10.0, read=120.0)


@dataclass(frozen=True)
class Spoken:
    """What came back.

    Attributes:
        first_byte_s: seconds from the request to the first audio.
        total_s: seconds from the request to the last.
        audio_s: length of the audio, where the format tells it without decoding (wav, pcm).
    """

    nbytes: int
    first_byte_s: float
    total_s: float
    audio_s: float | None

    def summary(self) -> str:
        """One line for people."""
        parts = [f"first audio after {self.first_byte_s:.2f} s"]
        if self.audio_s:
            parts.insert(0, f"{self.audio_s:.2f} s of audio")
            parts.append(f"real-time factor {self.total_s / self.audio_s:.2f}")
        else:
            parts.insert(0, f"{self.nbytes} bytes")
            parts.append(f"all of it after {self.total_s:.2f} s")
        return ", ".join(parts)


def address_given(url: str) -> str:
    """Base address of a system that somebody named, with or without /v1.

    Raises:
        LauncherError: it has no scheme or no host.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise LauncherError(f"{url!r} is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise LauncherError(f"{url!r} is no address; it begins with http:// or https://, e.g. http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def format_of(output: Path | None, wanted: str | None) -> str:
    """The format asked for, else the one that the file's name stands for; wav for standard output (None).

    Raises:
        LauncherError: it is none that is spoken here.
    """
    suffix = output.suffix.lower().removeprefix(".") if output is not None else "wav"
    name = wanted or _OTHER_SUFFIXES.get(suffix, suffix)
    if name not in FORMATS:
        raise LauncherError(f"unknown audio format {name!r}; there are: {', '.join(FORMATS)} (see --format)")
    return name


def say(
    address: str,
    request: dict[str, object],
    output: Path | None,
    *,
    api_key: str | None,
    progress: Callable[[int], None],
) -> Spoken:
    """Ask for speech and write it to a file, or to standard output (None), as it comes.

    Args:
        request: body of POST /v1/audio/speech.
        progress: called with the number of bytes so far.

    Raises:
        LauncherError: the system refused, or broke off; the file is removed then.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    begun, first, nbytes = time.monotonic(), 0.0, 0
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, headers=headers) as client,
            client.stream("POST", f"{address}/v1/audio/speech", json=request) as response,
        ):
            if response.status_code != httpx.codes.OK:
                response.read()
                raise LauncherError(_reason(response))
            with _writable(output) as file:
                for chunk in response.iter_bytes():
                    first = first or time.monotonic() - begun
                    file.write(chunk)
                    nbytes += len(chunk)
                    progress(nbytes)
    except httpx.ConnectError as error:
        raise LauncherError(f"nobody answers at {address}: {error}") from error
    except httpx.TransportError as error:
        if output is not None:
            output.unlink(missing_ok=True)
        raise LauncherError(f"{address} broke off: {error}") from error
    except OSError as error:
        raise LauncherError(f"{output or 'standard output'} cannot be written: {error.strerror}") from error
    total = time.monotonic() - begun
    if request["response_format"] == "wav" and output is not None:
        output.write_bytes(with_sizes(output.read_bytes()))
    return Spoken(nbytes, first, total, _length(output, str(request["response_format"]), nbytes))


@contextmanager
def _writable(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output.open("wb") as file:
        yield file


def with_sizes(data: bytes) -> bytes:
    """A WAV file that was streamed, its unknown sizes filled in, so that every player and library takes it."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return data
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"data":
            if size in _UNKNOWN_SIZES or at + 8 + size > len(data):
                fixed = bytearray(data)
                struct.pack_into("<I", fixed, 4, len(data) - 8)
                struct.pack_into("<I", fixed, at + 4, len(data) - at - 8)
                return bytes(fixed)
            return data
        at += 8 + size + size % 2
    return data


def wav_seconds(data: bytes) -> float:
    """Length of a WAV file."""
    with wave.open(io.BytesIO(with_sizes(data))) as file:
        return float(file.getnframes() / file.getframerate())


def _length(output: Path | None, audio_format: str, nbytes: int) -> float | None:
    if audio_format == "pcm":
        return nbytes / _PCM_BYTES_PER_S
    return wav_seconds(output.read_bytes()) if audio_format == "wav" and output is not None else None


def _reason(response: httpx.Response) -> str:
    """The message of an OpenAI-shaped error."""
    try:
        error = response.json()["error"]
        field = f" ({error['param']})" if error.get("param") else ""
        return f"{error['message']}{field}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
