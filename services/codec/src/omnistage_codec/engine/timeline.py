"""Where the samples of a request lie in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.engine.batches import Frames


@dataclass(frozen=True, kw_only=True, eq=False)
class AudioPiece:
    """The next samples of a request.

    Attributes:
        samples: [n] int16 mono, n > 0, memory of its own.
        offset: index of the first sample within the whole answer.
        sample_rate_hz: samples per second.
        segment: the segment that they belong to.
        text: what the segment says, on its first piece, else empty.
    """

    samples: NDArray[np.int16]
    offset: int
    sample_rate_hz: int
    segment: int
    text: str


class Timeline:
    """Where the next samples lie in the answer.

    Args:
        first_offset: index within the answer of the first sample that is made.
        skip_samples: samples that were delivered before.
        sample_rate_hz: samples per second.
    """

    def __init__(self, first_offset: int, skip_samples: int, sample_rate_hz: int) -> None:
        self._skip_samples = skip_samples
        self._sample_rate_hz = sample_rate_hz
        self._offset = first_offset
        self._text = ""

    @property
    def delivered(self) -> int:
        """How many of the next samples were delivered before."""
        return max(0, self._skip_samples - self._offset)

    def place(self, batch: Sequence[Frames], samples: NDArray[np.int16]) -> AudioPiece | None:
        """The piece that these samples make; None if all were delivered before, or there are none yet."""
        start = self._offset
        self._offset += len(samples)
        self._text = next((chunk.text for chunk in batch if chunk.text), self._text)
        fresh = samples[max(0, self._skip_samples - start) :]
        if len(fresh) < len(samples):
            self._text = ""  # was delivered with the segment's first sample
        if not len(fresh):
            return None
        text, self._text = self._text, ""
        return AudioPiece(
            samples=fresh,
            offset=self._offset - len(fresh),
            sample_rate_hz=self._sample_rate_hz,
            segment=batch[0].segment,
            text=text,
        )
