"""Pictures to patches, as the vision tower takes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import torch
from torch import Tensor

from omnistage.ar.qwen3.positions import Grid
from omnistage.errors import InvalidRequest
from omnistage_thinker.models.qwen3_omni.config import VisionConfig

_MOST_STRETCHED = 200
"""Width to height, or the reverse, of a picture that is not taken."""

_WHITE = 255.0
_MEAN, _DEVIATION = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """How many pixels a picture may have after scaling."""

    least: int
    most: int


def scaled_size(height: int, width: int, multiple: int, limits: PixelLimits) -> tuple[int, int]:
    """Height and width to scale a picture to: multiples, within the limits, and nearly of the same shape.

    Raises:
        InvalidRequest: the picture is too long and narrow.
    """
    if min(height, width) < 1 or max(height, width) > _MOST_STRETCHED * min(height, width):
        raise InvalidRequest(f"a picture of {width} by {height} pixels is too long and narrow")
    tall, wide = (max(multiple, round(size / multiple) * multiple) for size in (height, width))
    if tall * wide > limits.most:
        factor = sqrt(height * width / limits.most)
        tall, wide = (max(multiple, floor(size / factor / multiple) * multiple) for size in (height, width))
    elif tall * wide < limits.least:
        factor = sqrt(limits.least / (height * width))
        tall, wide = (ceil(size * factor / multiple) * multiple for size in (height, width))
    return tall, wide


def to_patches(frames: Tensor, config: VisionConfig) -> tuple[Tensor, Grid]:
    """Cut a picture, or a video, into patches; the last frame is repeated until frames fill their patches.

    Args:
        frames: [frames, channels, height, width] uint8; height and width are multiples of patch_size * merge_size.
        config: of the tower.

    Returns:
        [patches, channels * patch_frames * patch_size^2] float32 within -1 to 1, square by square, and their grid.
    """
    missing = -len(frames) % config.patch_frames
    frames = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1)))
    values = (frames.float() / _WHITE - _MEAN) / _DEVIATION
    size, merge, depth = config.patch_size, config.merge_size, config.patch_frames
    time, channels = len(values) // depth, values.shape[1]
    tall, wide = values.shape[2] // (size * merge), values.shape[3] // (size * merge)
    cut = values.view(time, depth, channels, tall, merge, size, wide, merge, size)
    # -> time, squares down, squares across, patches down and across in a square, then the inside of a patch
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    grid = (time, tall * merge, wide * merge)
    return ordered.reshape(time * tall * merge * wide * merge, channels * depth * size * size), grid
