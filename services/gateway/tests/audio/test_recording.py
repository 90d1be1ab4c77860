"""Recordings that clients send: what they sound like is found, and whatever else they are is refused."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.errors import InvalidRequest
from omnistage_gateway.audio.recording import RecordingLimits, decode_recording


def tone(seconds: float, rate_hz: int = 24_000, hz: float = 220.0) -> Any:
    return np.rint(np.sin(np.arange(round(seconds * rate_hz)) * 2 * np.pi * hz / rate_hz) * 9000).astype(np.int16)


def wav(samples: Any, rate_hz: int = 24_000, channels: int = 1) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def raw_wav(data: bytes, *, code: int, bits: int, rate_hz: int = 24_000, channels: int = 1, claim: int = -1) -> bytes:
    """A WAVE file with any format code, and any length in its header."""
    align = channels * bits // 8
    size = len(data) if claim < 0 else claim
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, code, channels, rate_hz, rate_hz * align, align, bits)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + size & 0xFFFFFFFF, b"WAVE")
        + head
        + b"data"
        + struct.pack("<I", size)
        + data
    )


def encoded(samples: Any, container: str, codec: str, rate_hz: int = 24_000) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate_hz)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = rate_hz
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return buffer.getvalue()


CONTAINERS = {
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "mp3"),
    "opus": ("ogg", "libopus"),
    "aac": ("adts", "aac"),
    "mp4": ("mp4", "aac"),
    "webm": ("webm", "libopus"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_gives_back_the_sound(name: str) -> None:
    container, codec = CONTAINERS[name]
    sound = tone(2.0)
    found = decode_recording(encoded(sound, container, codec))
    assert found.samples.dtype == np.int16
    assert found.duration_s == pytest.approx(2.0, abs=0.1)
    spectrum = np.abs(np.fft.rfft(found.samples.astype(float)))
    assert spectrum.argmax() * found.sample_rate_hz / len(found.samples) == pytest.approx(220, abs=2)


def test_wav_and_flac_are_exact() -> None:
    sound = tone(1.5)
    for data in (wav(sound), encoded(sound, "flac", "flac")):
        found = decode_recording(data)
        assert found.sample_rate_hz == 24_000
        assert np.array_equal(found.samples, sound)


@pytest.mark.parametrize("channels", [2, 3, 6, 8])
def test_channels_become_their_mean(channels: int) -> None:
    parts = np.stack([tone(1.0, hz=200 + 40 * number) for number in range(channels)], axis=1)
    found = decode_recording(wav(parts, channels=channels))
    assert np.abs(found.samples - parts.mean(axis=1)).max() <= 1


@pytest.mark.parametrize(("code", "bits", "dtype"), [(1, 8, "u1"), (1, 32, "<i4"), (3, 32, "<f4"), (3, 64, "<f8")])
def test_every_kind_of_sample(code: int, bits: int, dtype: str) -> None:
    sound = tone(1.0)
    unit = sound / 32768.0
    scaled = {"u1": unit * 128 + 128, "<i4": unit * 2**31}.get(dtype, unit)
    found = decode_recording(raw_wav(scaled.astype(dtype).tobytes(), code=code, bits=bits))
    assert np.abs(found.samples.astype(int) - sound).max() <= (256 if bits == 8 else 1)


def test_more_than_48_khz_is_converted() -> None:
    found = decode_recording(wav(tone(1.0, 96_000), 96_000))
    assert found.sample_rate_hz == 48_000
    assert np.abs(found.samples[1000:-1000] - tone(1.0, 48_000)[1000:-1000].astype(int)).max() < 40


def test_a_header_that_lies_about_the_length_is_not_believed() -> None:
    sound = tone(1.5)
    assert np.array_equal(decode_recording(raw_wav(sound.tobytes(), code=1, bits=16, claim=0xFFFFFFF0)).samples, sound)
    mp3 = bytearray(encoded(tone(2.0), "mp3", "mp3"))
    place = mp3.find(b"Xing") if b"Xing" in mp3 else mp3.find(b"Info")
    mp3[place + 8 : place + 12] = (10**6).to_bytes(4, "big")
    assert decode_recording(bytes(mp3)).duration_s == pytest.approx(2.0, abs=0.2)


def lying_mp3() -> bytes:
    """An hour by its header, a quarter of a second by its frames."""
    mp3 = bytearray(encoded(tone(0.25), "mp3", "mp3"))
    place = mp3.find(b"Xing") if b"Xing" in mp3 else mp3.find(b"Info")
    mp3[place + 8 : place + 12] = (137_000).to_bytes(4, "big")
    return bytes(mp3)


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("voice.wav", bytes(50_000_000))
    return buffer.getvalue()


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "invalid_audio"),
    "text": (lambda: b"RIFF is what this text begins with", "invalid_audio"),
    "zip bomb": (zip_bomb, "invalid_audio"),
    "gzip bomb": (lambda: gzip.compress(bytes(50_000_000)), "invalid_audio"),
    "playlist": (lambda: b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/passwd\n", "invalid_audio"),
    "concat script": (lambda: b"ffconcat version 1.0\nfile '/etc/passwd'\n", "invalid_audio"),
    "sdp": (lambda: b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n", "invalid_audio"),
    "png": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(1000), "invalid_audio"),
    "avi": (lambda: b"RIFF" + bytes(4) + b"AVI " + bytes(1000), "invalid_audio"),
    "no samples": (lambda: wav(np.zeros(0, np.int16)), "invalid_audio"),
    "head alone": (lambda: wav(tone(2.0))[:30], "invalid_audio"),
    "flac head alone": (lambda: encoded(tone(2.0), "flac", "flac")[:100], "invalid_audio"),
    "webm head alone": (lambda: b"\x1aE\xdf\xa3" + bytes(200), "invalid_audio"),
    "mp4 of noise": (lambda: b"\0\0\0\x18ftypisom" + np.random.default_rng(1).bytes(5000), "invalid_audio"),
    "ogg of noise": (lambda: b"OggS" + np.random.default_rng(1).bytes(5000), "invalid_audio"),
    "mp3 of noise": (lambda: b"\xff\xfb" + np.random.default_rng(1).bytes(20_000), "invalid_audio"),
    "too short": (lambda: wav(tone(0.9)), "audio_too_short"),
    "mp3 with a lying header": (lying_mp3, "audio_too_short"),
    "31 s": (lambda: wav(tone(31.0, 8000), 8000), "audio_too_long"),
    "10 minutes of flac": (lambda: encoded(np.zeros(600 * 24_000, np.int16), "flac", "flac"), "audio_too_long"),
    "too many channels": (lambda: wav(np.zeros((24_000, 9), np.int16), channels=9), "invalid_audio"),
    "rate too low": (lambda: wav(tone(2.0, 4000), 4000), "invalid_audio"),
    "rate too high": (lambda: wav(tone(1.0, 384_000), 384_000), "invalid_audio"),
    "no numbers": (lambda: raw_wav(np.full(48_000, np.nan, "<f4").tobytes(), code=3, bits=32), "invalid_audio"),
    "infinities": (lambda: raw_wav(np.full(48_000, np.inf, "<f4").tobytes(), code=3, bits=32), "invalid_audio"),
    "too large": (lambda: wav(np.zeros(6_000_000, np.int16)), "audio_too_large"),
    "unknown codec": (lambda: raw_wav(bytes(48_000), code=0x7777, bits=16), "invalid_audio"),
    "rate of zero": (lambda: raw_wav(bytes(48_000), code=1, bits=16, rate_hz=0), "invalid_audio"),
    "no channel": (lambda: raw_wav(bytes(48_000), code=1, bits=16, channels=0), "invalid_audio"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_recording_is_refused(name: str) -> None:
    make, code = BAD[name]
    with pytest.raises(InvalidRequest) as caught:
        decode_recording(make())
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_a_long_recording_is_given_up_early() -> None:
    data = encoded(np.zeros(600 * 24_000, np.int16), "flac", "flac")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            decode_recording(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20, "30 s are 3 MB of floats; ten minutes would be 58"


def png_bomb(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((3 * side + 1) * side), 9)
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_picture_in_the_tags_is_not_decoded() -> None:
    """A picture of 8000 x 8000 would take 192 MB; its size stays unknown, since nobody has looked."""
    picture = b"\0image/png\0\3\0" + png_bomb(8000)
    frame = b"APIC" + struct.pack(">I", len(picture)) + b"\0\0" + picture
    size = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    data = b"ID3\x03\0\0" + size + frame + encoded(tone(2.0), "mp3", "mp3")
    before = resident_bytes()
    assert decode_recording(data).duration_s == pytest.approx(2.0, abs=0.1)
    assert resident_bytes() - before < 100 * 2**20


def resident_bytes() -> int:
    """The most that this process ever held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_limits_are_the_callers() -> None:
    with pytest.raises(InvalidRequest):
        decode_recording(wav(tone(2.0)), RecordingLimits(max_s=1.5))
    assert decode_recording(wav(tone(0.5)), RecordingLimits(min_s=0.1)).duration_s == 0.5


GOOD = {name: encoded(tone(1.2), *CONTAINERS[name]) for name in CONTAINERS} | {"wav": wav(tone(1.2))}


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(GOOD)),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
def test_damage_is_a_refusal_or_a_sound_of_fair_length(name: str, cut: float, flips: list[tuple[float, int]]) -> None:
    data = bytearray(GOOD[name])
    for place, value in flips:
        data[int(place * len(data))] = value
    try:
        found = decode_recording(bytes(data[: round(cut * len(data))]))
    except InvalidRequest:
        return
    assert 1.0 <= found.duration_s <= 30.0
