"""Noise that is a function of (seed, segment, frame), so that any frame's noise can be made alone.

The generator is Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Its key is (seed
modulo 2^64, domain); its 256-bit counter starts at (0, frame, segment, 0), and the lowest word counts within the
frame. Equal numbers from equal seeds hold for one version of numpy, whose method for normal variates they depend on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models.hibari.layout import BINS

_DOMAIN = 0x6869626172690001  # keeps the streams of this family apart from those of others with the same seed
_WORD = (1 << 64) - 1


class FrameNoise:
    """Complex normal noise of one request. Not to be shared between threads."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed & _WORD, _DOMAIN], np.uint64))
        self._normal = np.random.Generator(self._bits)
        self._origin = self._bits.state  # pristine: nothing buffered

    def frames(self, segment: int, first_frame: int, count: int) -> NDArray[np.complex64]:
        """[count, BINS] complex64; real and imaginary part each of unit variance."""
        out = np.empty((count, 2 * BINS), np.float32)
        for row, frame in zip(out, range(first_frame, first_frame + count), strict=True):
            self._origin["state"]["counter"] = np.array([0, frame, segment, 0], np.uint64)
            self._bits.state = self._origin
            self._normal.standard_normal(out=row, dtype=np.float32)
        return out.view(np.complex64)
