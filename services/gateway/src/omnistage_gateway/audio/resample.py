"""Another sample rate, by soxr."""

from __future__ import annotations

import numpy as np
import soxr

from omnistage_gateway.audio.encoder import Samples

_FULL_SCALE = 32768.0


class Resample:
    """Converts a stream from one rate to another.

    soxr runs on float32: its int16 output is dithered with noise seeded by the clock, and equal requests must give
    equal bytes.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")

    def feed(self, samples: Samples) -> Samples:
        """The next [samples] int16; returns what is ready."""
        return self._convert(samples, last=False)

    def finish(self) -> Samples:
        """No more will come; returns the rest."""
        return self._convert(np.zeros(0, np.int16), last=True)

    def _convert(self, samples: Samples, *, last: bool) -> Samples:
        out = self._stream.resample_chunk(samples.astype(np.float32) / _FULL_SCALE, last=last)
        rounded: Samples = np.clip(np.rint(out * _FULL_SCALE), -32768, 32767).astype(np.int16)
        return rounded
