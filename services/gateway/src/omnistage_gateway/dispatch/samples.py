"""Audio in order, each sample once: overlaps are dropped by offset, a gap is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnistage.contracts import AudioDelta
from omnistage.errors import StageFailed
from omnistage_gateway.dispatch.interface import AudioPiece

_PEAK = 32767.0


def to_int16(samples: NDArray[Any]) -> NDArray[np.int16]:
    """[samples] int16 of [samples] int16 or float in [-1, 1]; what lies outside is clipped.

    Raises:
        StageFailed: another dtype, more than one axis, or values that are no numbers.
    """
    if samples.ndim != 1:
        raise StageFailed(f"audio has shape {samples.shape}, one axis was expected", code="bad_audio")
    if samples.dtype == np.int16:
        return samples
    if not np.issubdtype(samples.dtype, np.floating):
        raise StageFailed(f"audio is {samples.dtype}, int16 or float32 was expected", code="bad_audio")
    if not np.isfinite(samples).all():
        raise StageFailed("audio holds values that are no numbers", code="bad_audio")
    scaled: NDArray[np.int16] = np.rint(np.clip(samples, -1.0, 1.0).astype(np.float32) * _PEAK).astype(np.int16)
    return scaled


class SampleOrder:
    """Where an audio edge stands.

    Attributes:
        position: samples delivered so far: the offset that is due.
    """

    def __init__(self) -> None:
        self.position = 0
        self._rate_hz: int | None = None
        self._titled = -1

    def overlap(self, delta: AudioDelta, count: int) -> int:
        """How many of the delta's `count` samples were delivered already: 0 to `count`.

        Raises:
            StageFailed: samples before this delta are missing, or the sample rate changed.
        """
        if self._rate_hz is None:
            self._rate_hz = delta.sample_rate_hz
        if delta.sample_rate_hz != self._rate_hz:
            raise StageFailed(
                f"the sample rate changed from {self._rate_hz} to {delta.sample_rate_hz} Hz", code="bad_audio"
            )
        if delta.offset > self.position:
            raise StageFailed(
                f"{delta.offset - self.position} samples are missing before sample {delta.offset}", code="audio_gap"
            )
        return min(self.position - delta.offset, count)

    def has(self, delta: AudioDelta, count: int) -> bool:
        """Whether a delta of `count` samples brings nothing new, so that its bytes need not be read.

        Raises:
            StageFailed: as `overlap`.
        """
        return self.overlap(delta, count) == count and not self._title(delta)

    def take(self, delta: AudioDelta, samples: NDArray[np.int16]) -> AudioPiece | None:
        """What is new in a delta: samples beyond those delivered, and the text of a segment that was not titled yet.

        Raises:
            StageFailed: as `overlap`.
        """
        fresh = samples[self.overlap(delta, len(samples)) :]
        text = self._title(delta)
        if text:
            self._titled = delta.segment
        if not len(fresh) and not text:
            return None
        self.position += len(fresh)
        return AudioPiece(fresh, delta.sample_rate_hz, delta.segment, text)

    def _title(self, delta: AudioDelta) -> str:
        return delta.text if delta.segment > self._titled else ""
