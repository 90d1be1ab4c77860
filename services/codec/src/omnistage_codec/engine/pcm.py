"""Samples as they leave the stage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FULL_SCALE = 32767.0


def to_int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """16-bit samples: clip to [-1, 1], times 32767, round to the nearest (ties to even). New memory."""
    scaled = np.clip(samples, np.float32(-1.0), np.float32(1.0)) * np.float32(FULL_SCALE)
    pcm: NDArray[np.int16] = np.rint(scaled).astype(np.int16)
    return pcm
