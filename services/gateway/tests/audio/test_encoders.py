"""Every format decodes to what went in, whatever the pieces."""

from __future__ import annotations

import io
import wave
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnistage.errors import StageFailed
from omnistage_gateway.audio import FORMATS, Transcoder, early_cut, supported_rate
from omnistage_gateway.audio.stretch import Stretch, tempo_factors

Array = NDArray[Any]
TOLERANCE_S = {"mp3": 0.1, "aac": 0.1}
BEFORE_FIRST = {"mp3": 1105, "aac": 1024}
"""Samples at 24 kHz that a decoder gives before the first one, where the format cannot say so."""


def tone(samples: int, rate_hz: int = 24_000, hz: float = 220.0) -> Array:
    return (np.sin(np.arange(samples) * 2 * np.pi * hz / rate_hz) * 9000).astype(np.int16)


def decode(data: bytes, name: str, rate_hz: int = 24_000) -> tuple[Array, int]:
    if name == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float64), rate_hz
    frames = []
    with av.open(io.BytesIO(data), "r") as container:
        for frame in container.decode(audio=0):
            plane = frame.to_ndarray().reshape(-1).astype(np.float64)
            frames.append(plane * 32768 if frame.format.name.startswith("flt") else plane)
            rate_hz = frame.sample_rate
    return np.concatenate(frames), rate_hz


def transcode(pieces: list[Array], name: str, **options: Any) -> bytes:
    chain = Transcoder(FORMATS[name], **options)
    data = b"".join(chain.feed(piece, 24_000) for piece in pieces) + chain.finish()
    chain.close()
    return data


def cut(samples: Array, sizes: list[int]) -> list[Array]:
    return np.split(samples, np.cumsum(sizes)[np.cumsum(sizes) < len(samples)])


def pitch_hz(samples: Array, rate_hz: int) -> float:
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(np.argmax(spectrum)) * rate_hz / len(middle)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("whole", [False, True])
@settings(max_examples=12, deadline=None)
@given(total=st.integers(4_800, 40_000), sizes=st.lists(st.integers(0, 9_000), max_size=12))
def test_any_pieces_decode_to_the_same_duration(name: str, whole: bool, total: int, sizes: list[int]) -> None:
    samples = tone(total)
    data = transcode(cut(samples, sizes), name, whole=whole)
    decoded, rate_hz = decode(data, name)
    assert abs(len(decoded) / rate_hz - total / 24_000) <= TOLERANCE_S.get(name, 0.05)


@pytest.mark.parametrize("name", ["pcm", "wav", "flac"])
@pytest.mark.parametrize("whole", [False, True])
def test_lossless_formats_give_back_every_sample(name: str, whole: bool) -> None:
    samples = np.random.default_rng(1).integers(-32768, 32767, 30_011).astype(np.int16)
    decoded, _ = decode(transcode(cut(samples, [1, 0, 7, 4096, 959]), name, whole=whole), name)
    assert np.array_equal(decoded, samples)


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
def test_lossy_formats_keep_pitch_and_loudness(name: str) -> None:
    samples = tone(48_000)
    decoded, rate_hz = decode(transcode([samples], name), name)
    assert abs(pitch_hz(decoded, rate_hz) - 220) < 3
    middle = decoded[len(decoded) // 4 : len(decoded) // 2]
    assert abs(np.sqrt(np.mean(middle**2)) / np.sqrt(np.mean(samples.astype(float) ** 2)) - 1) < 0.1


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_come_with_the_first_tenth_of_a_second(name: str) -> None:
    chain = Transcoder(FORMATS[name])
    early = chain.feed(tone(4800), 24_000)
    assert len(early) > 40
    later = [chain.feed(tone(4800), 24_000) for _ in range(5)]
    assert all(later)
    chain.close()


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_given_is_what_the_bytes_hold(name: str) -> None:
    chain = Transcoder(FORMATS[name])
    data = chain.feed(tone(7001), 24_000)
    for length in (40, 2400, 100, 24_000):
        data += chain.feed(tone(length), 24_000)
        decoded, rate_hz = decode(data, name)
        assert chain.given_s == pytest.approx(len(decoded) / rate_hz - BEFORE_FIRST.get(name, 0) / 24_000, abs=0.001)
        assert chain.duration_s - 0.15 <= chain.given_s <= chain.duration_s
    chain.finish()
    assert chain.given_s == chain.duration_s
    chain.close()


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac"])
def test_without_bytes_nothing_was_given(name: str) -> None:
    chain = Transcoder(FORMATS[name])
    for _ in range(2):
        chain.feed(tone(40), 24_000)
        assert (chain.given_s, chain.duration_s > 0) == (0.0, True)
    chain.close()


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_answer_comes_at_the_end(name: str) -> None:
    chain = Transcoder(FORMATS[name], whole=True)
    pieces = chain.feed(tone(24_000), 24_000)
    assert (pieces == b"") == (name != "pcm")
    assert pieces + chain.finish()
    chain.close()


def test_wav_header_states_true_sizes_when_whole_and_unknown_ones_when_streamed() -> None:
    samples = tone(1000)
    whole = transcode([samples], "wav", whole=True)
    with wave.open(io.BytesIO(whole)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24_000)
        assert reader.getnframes() == 1000
    assert int.from_bytes(whole[4:8], "little") == len(whole) - 8
    streamed = transcode([samples], "wav")
    assert streamed[4:8] == streamed[40:44] == b"\xff" * 4
    assert streamed[44:] == whole[44:]
    with wave.open(io.BytesIO(streamed)) as reader:
        assert reader.readframes(5000) == samples.tobytes()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rate_hz", [8000, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_other_sample_rates(name: str, rate_hz: int) -> None:
    if rate_hz < min(FORMATS[name].rates_hz, default=0):
        assert supported_rate(FORMATS[name], rate_hz) == 22_050
        return
    samples = tone(36_001)
    data = transcode(cut(samples, [700] * 60), name, rate_hz=rate_hz)
    decoded, decoded_hz = decode(data, name, rate_hz)
    if name != "opus":
        assert decoded_hz == rate_hz
    assert abs(len(decoded) / decoded_hz - 36_001 / 24_000) <= TOLERANCE_S.get(name, 0.005)
    assert abs(pitch_hz(decoded, decoded_hz) - 220) < 3


def test_equal_requests_give_equal_bytes_also_when_resampled_and_stretched() -> None:
    samples = tone(20_000)
    for name in FORMATS:
        first = transcode(cut(samples, [5000, 5000]), name, rate_hz=16_000, tempo=1.7)
        assert first == transcode(cut(samples, [5000, 5000]), name, rate_hz=16_000, tempo=1.7)


@pytest.mark.parametrize("tempo", [0.25, 0.4, 0.5, 0.77, 0.99, 1.3, 2.0, 2.7, 4.0])
@pytest.mark.parametrize("samples", [1, 479, 2000, 24_000, 100_001])
def test_stretch_has_the_exact_length_whatever_the_pieces(tempo: float, samples: int) -> None:
    sound = tone(samples)
    outputs = []
    for sizes in ([samples], [333] * (samples // 333)):
        stretch = Stretch(24_000, tempo)
        outputs.append(np.concatenate([*[stretch.feed(piece) for piece in cut(sound, sizes)], stretch.finish()]))
        assert len(outputs[-1]) == round(samples / tempo)
    assert np.array_equal(outputs[0], outputs[1])
    if samples > 90_000:
        assert abs(pitch_hz(outputs[0].astype(float), 24_000) - 220) < 6


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 20_000),
    tempo=st.floats(0.25, 4.0),
    rate_hz=st.sampled_from([8000, 22_050, 24_000, 48_000]),
    sizes=st.lists(st.integers(1, 3_000), max_size=6),
)
def test_a_clip_however_short_is_stretched_and_resampled_to_the_sample(
    total: int, tempo: float, rate_hz: int, sizes: list[int]
) -> None:
    data = transcode(cut(tone(total), sizes), "pcm", rate_hz=rate_hz, tempo=tempo)
    assert abs(len(data) / 2 - round(total / tempo) * rate_hz / 24_000) <= 1


@pytest.mark.parametrize("tempo", [0.25, 0.5, 0.8, 1.5, 4.0])
def test_a_clip_of_a_quarter_second_sounds_to_its_end(tempo: float) -> None:
    decoded, _ = decode(transcode([tone(6000)], "pcm", tempo=tempo), "pcm")
    heard = np.flatnonzero(np.abs(decoded) > 50)
    assert len(decoded) == round(6000 / tempo)
    assert heard[-1] / 24_000 > len(decoded) / 24_000 - 0.07


@pytest.mark.parametrize("tempo", [0.25, 0.3, 1.0, 3.9, 4.0])
def test_tempo_factors_stay_within_the_filter_s_clean_range(tempo: float) -> None:
    factors = tempo_factors(tempo)
    assert all(0.5 <= factor <= 2.0 for factor in factors)
    assert np.prod(factors) == pytest.approx(tempo)


def test_a_changed_rate_is_an_error() -> None:
    chain = Transcoder(FORMATS["pcm"])
    chain.feed(tone(10), 24_000)
    with pytest.raises(StageFailed) as caught:
        chain.feed(tone(10), 16_000)
    assert caught.value.code == "rate_changed"


def test_nothing_in_gives_an_empty_but_valid_answer() -> None:
    assert transcode([], "pcm") == b""
    with wave.open(io.BytesIO(transcode([], "wav", whole=True))) as reader:
        assert reader.getnframes() == 0
    for name in ("mp3", "opus", "aac", "flac"):
        assert transcode([], name) == b""


def test_after_close_nothing_comes() -> None:
    for name in FORMATS:
        chain = Transcoder(FORMATS[name])
        chain.feed(tone(100), 24_000)
        chain.close()
        chain.close()
        assert chain.feed(tone(100), 24_000) == chain.finish() == b""


def test_supported_rate_never_goes_down_unless_it_must() -> None:
    assert supported_rate(FORMATS["opus"], 22_050) == 24_000
    assert supported_rate(FORMATS["mp3"], 96_000) == 48_000
    assert supported_rate(FORMATS["wav"], 96_000) == 96_000


@pytest.mark.parametrize("samples", [1, 2400, 2401, 50_000])
def test_the_first_piece_is_cut_early_without_loss(samples: int) -> None:
    sound = tone(samples)
    parts = early_cut(sound, 24_000)
    assert np.array_equal(np.concatenate(parts), sound)
    assert len(parts) == (1 if samples <= 2400 else 2)
    assert len(parts[0]) <= 2400
