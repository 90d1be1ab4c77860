"""All media of a conversation, from files to what the towers take."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnistage.ar.qwen3.positions import Grid
from omnistage.contracts import ChatMessage, MediaKind, MediaPart
from omnistage.errors import InvalidRequest
from omnistage_thinker.media.images import decode_image, scaled_image
from omnistage_thinker.media.limits import MediaLimits, refuse
from omnistage_thinker.media.prepared import PreparedMedia
from omnistage_thinker.media.sounds import decode_sound, sound_of_video
from omnistage_thinker.media.videos import FrameRule, decode_video
from omnistage_thinker.models.qwen3_omni.config import VisionConfig
from omnistage_thinker.models.qwen3_omni.mel import LogMel
from omnistage_thinker.models.qwen3_omni.patches import PixelLimits, to_patches


@dataclass(slots=True)
class _Gathered:
    order: list[MediaKind] = field(default_factory=list)
    clips: list[Tensor] = field(default_factory=list)
    images: list[tuple[Tensor, Grid]] = field(default_factory=list)
    videos: list[tuple[Tensor, Grid]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sounding: list[bool] = field(default_factory=list)


class MediaProcessor:
    """Decodes and preprocesses.

    Args:
        vision: of the tower.
        mel_bins: of the audio tower.
        pixels: of a picture, after scaling.
        frames: which frames of a video are looked at.
        limits: of files.
    """

    def __init__(
        self,
        vision: VisionConfig,
        mel_bins: int,
        *,
        pixels: PixelLimits | None = None,
        frames: FrameRule | None = None,
        limits: MediaLimits | None = None,
    ) -> None:
        self._vision = vision
        self._multiple = vision.patch_size * vision.merge_size
        self._mel = LogMel(mel_bins)
        self._pixels = pixels or PixelLimits(least=3_136, most=12_845_056)
        self._frames = frames or FrameRule(step=vision.patch_frames)
        self._limits = limits or MediaLimits()

    def prepare(
        self, messages: Iterable[ChatMessage], data: NDArray[np.uint8], *, audio_in_video: bool = False
    ) -> PreparedMedia:
        """What the model takes of a conversation's media. Blocks for as long as decoding takes: call it in a thread.

        Args:
            messages: the conversation.
            data: [bytes] uint8, the work's payload.
            audio_in_video: the sound of videos is heard too.

        Raises:
            InvalidRequest: a file cannot be taken; names the field.
        """
        gathered = _Gathered()
        for part in (part for message in messages for part in message.media):
            try:
                self._add(gathered, part, _file(part, data), audio_in_video=audio_in_video)
            except InvalidRequest as error:
                where = part.param or "messages"
                raise InvalidRequest(
                    f"Invalid value for '{where}': {error.message}.", code=error.code, param=where
                ) from None
        return _joined(gathered)

    def _add(self, gathered: _Gathered, part: MediaPart, data: bytes, *, audio_in_video: bool) -> None:
        gathered.order.append(part.kind)
        if part.kind == "audio":
            gathered.clips.append(self._spectrogram(decode_sound(data, part.format, self._limits)))
        elif part.kind == "image":
            picture = decode_image(data, part.format, self._limits)
            gathered.images.append(to_patches(scaled_image(picture, self._multiple, self._pixels), self._vision))
        else:
            frames, rate_hz = decode_video(data, part.format, self._multiple, self._frames, self._limits)
            gathered.videos.append(to_patches(frames, self._vision))
            gathered.seconds.append(self._vision.patch_frames / rate_hz)
            sound = sound_of_video(data, part.format, self._limits) if audio_in_video else None
            gathered.sounding.append(sound is not None)
            if sound is not None:
                gathered.clips.append(self._spectrogram(sound))

    def _spectrogram(self, samples: NDArray[np.float32]) -> Tensor:
        return self._mel(torch.from_numpy(samples))


def _file(part: MediaPart, data: NDArray[np.uint8]) -> bytes:
    end = part.offset + part.nbytes
    if part.offset < 0 or part.nbytes < 0 or end > data.size:
        refuse("its bytes are missing")
    return data[part.offset : end].tobytes()


def _joined(gathered: _Gathered) -> PreparedMedia:
    features, mask = _padded(gathered.clips)
    pixels, image_grids = _stacked(gathered.images)
    frames, video_grids = _stacked(gathered.videos)
    seconds = torch.tensor(gathered.seconds, dtype=torch.float32) if gathered.seconds else None
    order, sounding = tuple(gathered.order), tuple(gathered.sounding)
    tensors = (features, mask, pixels, image_grids, frames, video_grids, seconds)
    return PreparedMedia(order, *tensors, sounding, _hash(f"{order} {sounding}", tensors))


def _padded(clips: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    if not clips:
        return None, None
    longest = max(clip.shape[1] for clip in clips)
    features = torch.zeros(len(clips), clips[0].shape[0], longest)
    mask = torch.zeros(len(clips), longest, dtype=torch.int64)
    for index, clip in enumerate(clips):
        features[index, :, : clip.shape[1]] = clip
        mask[index, : clip.shape[1]] = 1
    return features, mask


def _stacked(cut: Sequence[tuple[Tensor, Grid]]) -> tuple[Tensor | None, Tensor | None]:
    if not cut:
        return None, None
    return torch.cat([patches for patches, _ in cut]), torch.tensor([grid for _, grid in cut])


def _hash(described: str, tensors: Iterable[Tensor | None]) -> str:
    digest = hashlib.blake2b(described.encode(), digest_size=16)
    for tensor in tensors:
        digest.update(b"-" if tensor is None else f"{tuple(tensor.shape)} ".encode())
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
