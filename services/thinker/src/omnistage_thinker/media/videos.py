"""Videos: from a file to some scaled frames, and the time between them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import floor
from typing import Any

import av
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from omnistage_thinker.media.limits import (
    LIBAV_OPTIONS,
    TOO_LARGE,
    TOO_LONG,
    MediaLimits,
    no_other_file,
    refuse,
)
from omnistage_thinker.models.qwen3_omni.patches import PixelLimits, scaled_size

FORMATS = ("mov", "matroska")
"""libav's names of the demuxers that are used for videos: mp4 and its kin, webm and mkv."""


_FRAME_PIXELS = PixelLimits(least=128 * 32 * 32, most=768 * 32 * 32)


@dataclass(frozen=True, slots=True)
class FrameRule:
    """Which frames are looked at, and how large.

    Attributes:
        per_second: how many.
        least, most: of a whole video.
        step: their number is a multiple of this.
        pixels: of one frame, after scaling.
        all_pixels: of all of them together, divided by `step`; each gets its share, but not much less than the least.
    """

    per_second: float = 2.0
    least: int = 4
    most: int = 768
    step: int = 2
    pixels: PixelLimits = _FRAME_PIXELS
    all_pixels: int = 128_000 * 32 * 32 * 9 // 10


def chosen_frames(total: int, rate_hz: float, rule: FrameRule) -> list[int]:
    """Indexes of the frames that are looked at, evenly over the video, as transformers' processor takes them.

    Args:
        total: frames of the video, at least one.
        rate_hz: its frames per second.
        rule: see there.
    """
    most = min(rule.most, total) // rule.step * rule.step
    wanted = min(max(total / rate_hz * rule.per_second, rule.least), most, total)
    count = floor(wanted / rule.step) * rule.step
    if count < 1:
        return [0]
    # The same arithmetic as the processor's: float32 steps, cut to whole numbers.
    return [int(index) for index in torch.arange(0, total, total / count).int()[:count]]


def decode_video(data: bytes, kind: str, multiple: int, rule: FrameRule, limits: MediaLimits) -> tuple[Tensor, float]:
    """The chosen frames of a file, scaled as they are decoded, so that no more than one is there in full size.

    Returns:
        [frames, channels, height, width] uint8, and frames per second among those chosen.

    Raises:
        InvalidRequest: no such file, without pictures, broken, too long or too large; without `param`.
    """
    if kind not in FORMATS:
        refuse(f"videos of type {kind[:20]!r} cannot be read; these can: mp4, webm")
    try:
        total, rate_hz = _counted(data, kind, limits)
        indexes = chosen_frames(total, rate_hz, rule)
        frames = _decoded(data, kind, multiple, rule, limits, indexes)
    except (av.FFmpegError, ValueError, OverflowError, MemoryError, ZeroDivisionError):
        refuse("the video is broken")
    return frames, len(indexes) / total * rate_hz


def _open(data: bytes, kind: str, limits: MediaLimits) -> Any:
    options = {**LIBAV_OPTIONS, "max_pixels": str(limits.pixels)}
    return av.open(io.BytesIO(data), "r", format=kind, options=options, metadata_errors="ignore", io_open=no_other_file)


def _counted(data: bytes, kind: str, limits: MediaLimits) -> tuple[int, float]:
    """Frames, and frames per second, by the packets that are there."""
    with _open(data, kind, limits) as file:
        if not file.streams.video:
            refuse("the file holds no pictures")
        stream = file.streams.video[0]
        if stream.codec_context.width * stream.codec_context.height > limits.pixels:
            refuse("its frames have too many pixels", TOO_LARGE)
        rate = stream.average_rate
        times: list[float] = []
        for packet in file.demux(video=0):
            if packet.size and packet.pts is not None and packet.time_base is not None:
                times.append(float(packet.pts * packet.time_base))
            if len(times) > limits.frames:
                refuse(f"it has more than {limits.frames} frames", TOO_LONG)
    if not times:
        refuse("the file holds no pictures")
    span = max(times) - min(times)
    if span > limits.seconds:
        refuse(f"it has more than {limits.seconds:g} s", TOO_LONG)
    rate_hz = (len(times) - 1) / span if span > 0 else float(rate or 1)
    return len(times), rate_hz


def _decoded(data: bytes, kind: str, multiple: int, rule: FrameRule, limits: MediaLimits, indexes: list[int]) -> Tensor:
    wanted, kept = set(indexes), dict[int, Tensor]()
    size: tuple[int, int] | None = None
    with _open(data, kind, limits) as file:
        for index, frame in enumerate(file.decode(video=0)):
            if index in wanted:
                if frame.width * frame.height > limits.pixels:
                    refuse("its frames have too many pixels", TOO_LARGE)
                size = size or scaled_size(frame.height, frame.width, multiple, _share(rule, len(indexes)))
                kept[index] = _scaled(torch.from_numpy(frame.to_ndarray(format="rgb24")), size)
            if index >= indexes[-1]:
                break
    if len(kept) < len(wanted):
        refuse("the video is broken")
    return torch.stack([kept[index] for index in indexes])


def _share(rule: FrameRule, count: int) -> PixelLimits:
    share = rule.all_pixels * rule.step // count
    return PixelLimits(rule.pixels.least, max(min(rule.pixels.most, share), int(rule.pixels.least * 1.05)))


def _scaled(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """[height, width, channels] uint8 -> [channels, *size] uint8, bicubic."""
    shown = pixels.permute(2, 0, 1)[None]
    if tuple(shown.shape[2:]) == size:
        return shown[0]
    return interpolate(shown, size, mode="bicubic", antialias=True)[0]
