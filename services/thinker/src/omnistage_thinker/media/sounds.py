"""Recordings, and the sound of videos: from a file to samples as spectrograms are made of."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from omnistage_thinker.media.limits import LIBAV_OPTIONS, TOO_LONG, MediaLimits, no_other_file, refuse
from omnistage_thinker.models.qwen3_omni.mel import SAMPLE_RATE_HZ

FORMATS = ("wav", "flac", "ogg", "mp3", "aac", "matroska", "mov")
"""libav's names of the demuxers that are used for sound."""

_RATES_HZ = (4_000, 192_000)
_MAX_CHANNELS = 8
_MAX_BROKEN = 16


def decode_sound(data: bytes, kind: str, limits: MediaLimits) -> NDArray[np.float32]:
    """[samples] float32 at 16 kHz, the mean of all channels of the first sound in a file.

    Raises:
        InvalidRequest: no such file, without sound, broken, or too long; without `param`.
    """
    if kind not in FORMATS:
        refuse(f"recordings of type {kind[:20]!r} cannot be read; these can: {', '.join(FORMATS)}")
    try:
        samples = _decoded(data, kind, limits)
    except (av.FFmpegError, ValueError, OverflowError, MemoryError):
        refuse("the recording is broken")
    if samples is None:
        refuse("the file holds no sound")
    return samples


def sound_of_video(data: bytes, kind: str, limits: MediaLimits) -> NDArray[np.float32] | None:
    """As `decode_sound`; None where a video has no sound."""
    try:
        return _decoded(data, kind, limits)
    except (av.FFmpegError, ValueError, OverflowError, MemoryError):
        refuse("the video's sound is broken")


def _decoded(data: bytes, kind: str, limits: MediaLimits) -> NDArray[np.float32] | None:
    # Pictures in a recording's tags are not decoded, however large they claim to be.
    options = {**LIBAV_OPTIONS, "max_pixels": str(limits.pixels)}
    with av.open(
        io.BytesIO(data), "r", format=kind, options=options, metadata_errors="ignore", io_open=no_other_file
    ) as file:
        if not file.streams.audio:
            return None
        blocks: list[NDArray[np.float32]] = []
        count, rate_hz = 0, 0
        for frame in _frames(file):
            if not rate_hz:
                rate_hz = frame.sample_rate
                if not _RATES_HZ[0] <= rate_hz <= _RATES_HZ[1]:
                    refuse(f"it has {rate_hz} samples a second; {_RATES_HZ[0]} to {_RATES_HZ[1]} can be read")
            elif frame.sample_rate != rate_hz:
                refuse("its sample rate changes on the way")
            blocks.append(_mono(frame))
            count += frame.samples
            if count > limits.seconds * rate_hz:
                refuse(f"it has more than {limits.seconds:g} s of sound", TOO_LONG)
    if not count:
        return None
    sound = np.concatenate(blocks)
    if not np.isfinite(sound).all():
        refuse("it holds values that are no numbers")
    resampled: NDArray[np.float32] = (
        sound if rate_hz == SAMPLE_RATE_HZ else soxr.resample(sound, rate_hz, SAMPLE_RATE_HZ)
    )
    return resampled


def _frames(file: Any) -> Iterator[Any]:
    """Of the first sound; a few broken packets are skipped, as players do."""
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
        refuse(f"it has {channels} channels; at most {_MAX_CHANNELS} can be mixed to one")
    array = frame.to_ndarray()
    planes = array if frame.format.is_planar else array.reshape(-1, channels).T
    if planes.dtype == np.uint8:
        planes = (planes.astype(np.float32) - 128.0) / 128.0
    elif np.issubdtype(planes.dtype, np.integer):
        planes = planes / float(-np.iinfo(planes.dtype).min)
    mean: NDArray[np.float32] = planes.mean(axis=0, dtype=np.float32)
    return mean
