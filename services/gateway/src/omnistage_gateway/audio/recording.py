"""Recordings that clients send, decoded: what the samples are counts, not what a header says."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from omnistage.errors import InvalidRequest
from omnistage_gateway.audio.containers import container_of
from omnistage_gateway.audio.encoder import Samples

INVALID = "invalid_audio"
TOO_LONG = "audio_too_long"
TOO_SHORT = "audio_too_short"

MAX_RATE_HZ = 48_000
"""Recordings with more samples a second are converted to this rate; no voice has anything above 24 kHz."""

_RATES_HZ = (8_000, 192_000)
_MAX_CHANNELS = 8
_MAX_BROKEN = 16
_FULL_SCALE = 32768.0
_KNOWN = "wav, flac, ogg (opus, vorbis), mp3, aac, mp4 and webm"

# Pictures in a file's tags are not decoded, however large they claim to be.
_OPTIONS = {"max_pixels": "1", "max_streams": "16"}


@dataclass(frozen=True)
class RecordingLimits:
    """What a recording must be.

    Attributes:
        max_bytes: largest file.
        min_s, max_s: shortest and longest sound.
    """

    max_bytes: int = 10 * 2**20
    min_s: float = 1.0
    max_s: float = 30.0


@dataclass(frozen=True, eq=False)
class Recording:
    """Sound of a client: [samples] int16, mono, at most `MAX_RATE_HZ` of them a second."""

    samples: Samples
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate_hz


def decode_recording(data: bytes, limits: RecordingLimits | None = None) -> Recording:
    """The sound in a file; several channels become one, their mean. Blocks: call it in a thread.

    Decoding stops as soon as there is more than is allowed, so a small file cannot become a large sound.

    Raises:
        InvalidRequest: too large, no audio file, broken, without sound, or too short or too long; without `param`.
    """
    bounds = limits or RecordingLimits()
    if len(data) > bounds.max_bytes:
        _refuse(f"the file is larger than {bounds.max_bytes} bytes", "audio_too_large")
    container = container_of(data)
    if container is None:
        _refuse(f"it is not an audio file that can be read; these can: {_KNOWN}")
    try:
        recording = _decode(data, container, bounds)
    except (av.FFmpegError, ValueError, OverflowError, MemoryError):
        # PyAV raises ValueError and its kin too, for numbers in headers that fit nowhere.
        _refuse("the audio file is broken")
    if recording.duration_s < bounds.min_s:
        _refuse(f"it has {recording.duration_s:.2f} s of sound; at least {bounds.min_s:g} s are needed", TOO_SHORT)
    return recording


def _decode(data: bytes, container: str, bounds: RecordingLimits) -> Recording:
    with av.open(
        io.BytesIO(data), "r", format=container, options=_OPTIONS, metadata_errors="ignore", io_open=_no_other_file
    ) as file:
        if not file.streams.audio:
            _refuse("the file holds no sound")
        blocks: list[NDArray[np.float32]] = []
        count, rate_hz = 0, 0
        for frame in _frames(file):
            if rate_hz not in (0, frame.sample_rate):
                _refuse("its sample rate changes on the way")
            if not rate_hz:
                rate_hz = _checked_rate(frame.sample_rate)
            blocks.append(_mono(frame))
            count += frame.samples
            if count > bounds.max_s * rate_hz:
                _refuse(f"it has more than {bounds.max_s:g} s of sound", TOO_LONG)
    if not count:
        _refuse("the file holds no sound")
    return _as_int16(np.concatenate(blocks), rate_hz)


def _frames(file: Any) -> Iterator[Any]:
    """Frames of the first sound; a few broken packets are skipped, as players do."""
    broken = 0
    for packet in file.demux(audio=0):
        try:
            yield from packet.decode()
        except av.InvalidDataError:
            broken += 1
            if broken > _MAX_BROKEN:
                raise


def _mono(frame: Any) -> NDArray[np.float32]:
    """[samples] float32 in [-1, 1] of a frame of any layout."""
    channels = frame.layout.nb_channels
    if channels > _MAX_CHANNELS:
        _refuse(f"it has {channels} channels; at most {_MAX_CHANNELS} can be mixed to one")
    array = frame.to_ndarray()
    planes = array if frame.format.is_planar else array.reshape(-1, channels).T
    mean: NDArray[np.float32] = _unit(planes).mean(axis=0, dtype=np.float32)
    return mean


def _unit(planes: NDArray[Any]) -> NDArray[np.float32]:
    if np.issubdtype(planes.dtype, np.floating):
        scaled = planes.astype(np.float32)
    elif planes.dtype == np.uint8:
        scaled = (planes.astype(np.float32) - 128.0) / 128.0
    else:
        scaled = (planes / float(-np.iinfo(planes.dtype).min)).astype(np.float32)
    if not np.isfinite(scaled).all():
        _refuse("it holds values that are no numbers")
    return scaled


def _as_int16(sound: NDArray[np.float32], rate_hz: int) -> Recording:
    if rate_hz > MAX_RATE_HZ:
        sound, rate_hz = soxr.resample(sound, rate_hz, MAX_RATE_HZ), MAX_RATE_HZ
    samples: Samples = np.clip(np.rint(sound * _FULL_SCALE), -32768, 32767).astype(np.int16)
    return Recording(samples, rate_hz)


def _checked_rate(rate_hz: int) -> int:
    lowest, highest = _RATES_HZ
    if not lowest <= rate_hz <= highest:
        _refuse(f"it has {rate_hz} samples a second; {lowest} to {highest} can be read")
    return rate_hz


def _no_other_file(_url: str, _flags: int, _options: dict[str, str]) -> NoReturn:
    raise ValueError("a recording opens no other files")


def _refuse(reason: str, code: str = INVALID) -> NoReturn:
    raise InvalidRequest(reason, code=code)
