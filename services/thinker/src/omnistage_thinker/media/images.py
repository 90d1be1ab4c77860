"""Pictures: from a file to scaled pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from omnistage_thinker.media.limits import TOO_LARGE, MediaLimits, refuse
from omnistage_thinker.models.qwen3_omni.patches import PixelLimits, scaled_size

FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP"}
"""Names on the wire -> Pillow's."""

_FAULTS = (OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError, ZeroDivisionError, KeyError)
"""What Pillow's readers raise for broken files: https://pillow.readthedocs.io/en/stable/reference/Image.html."""


def decode_image(data: bytes, kind: str, limits: MediaLimits) -> Image.Image:
    """The picture in a file, the first of several, upright, in RGB.

    Args:
        data: the file.
        kind: one of `FORMATS`.
        limits: see there.

    Raises:
        InvalidRequest: no picture of that kind, broken, or more pixels than are allowed; without `param`.
    """
    if kind not in FORMATS:
        refuse(f"pictures of type {kind[:20]!r} cannot be read; these can: {', '.join(FORMATS)}")
    try:
        with Image.open(io.BytesIO(data), formats=(FORMATS[kind],)) as picture:
            # Known from the header, before any pixel is decoded.
            if picture.width * picture.height > limits.pixels:
                refuse(f"the picture has {picture.width} by {picture.height} pixels, too many", TOO_LARGE)
            return ImageOps.exif_transpose(picture).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        refuse("the picture has too many pixels", TOO_LARGE)
    except _FAULTS:
        refuse("the picture is broken")


def scaled_image(picture: Image.Image, multiple: int, limits: PixelLimits) -> Tensor:
    """[1, channels, height, width] uint8, scaled bicubically to multiples within the limits.

    Raises:
        InvalidRequest: the picture is too long and narrow.
    """
    height, width = scaled_size(picture.height, picture.width, multiple, limits)
    scaled: Any = np.array(picture.resize((width, height), Image.Resampling.BICUBIC))
    return torch.from_numpy(scaled).permute(2, 0, 1)[None]
