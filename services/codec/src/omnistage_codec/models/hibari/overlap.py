"""Overlap-add: waveforms of frames, four of which cover each hop, to samples.

Hop b of the padded time line gets quarter 0 of frame b, quarter 1 of frame b - 1, and so on, divided by the sum of the
squared windows of those that exist. The segment's own time line begins two hops later (half a frame of padding).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models.hibari.layout import HOP
from omnistage_codec.models.hibari.spectrum import N_FFT, OVERLAP, WINDOW

PADDING_HOPS = OVERLAP // 2
"""Hops of padding before a segment; also by how many its samples trail the frames that make them final."""

_SMALLEST_NORM = np.float32(1e-11)


class OverlapAdd:
    """The overlap-add of one segment; its state is the last three frames' waveforms."""

    def __init__(self) -> None:
        self._recent = np.zeros((OVERLAP - 1, N_FFT), np.float32)
        self._frames = 0
        self._hops = 0

    def extend(self, waves: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        """Samples that the next frames make final.

        Args:
            waves: [n, N_FFT] windowed waveforms.
            last: whether the segment ends with them.

        Returns:
            [m] float32, m a multiple of HOP.
        """
        tail = np.zeros((PADDING_HOPS if last else 0, N_FFT), np.float32)
        known = np.concatenate((self._recent, waves, tail))
        first = self._frames
        hops = len(known) - (OVERLAP - 1)
        total = first + len(waves) if last else None
        out = np.zeros((hops, HOP), np.float32)
        for quarter in range(OVERLAP):
            row = OVERLAP - 1 - quarter
            out += known[row : row + hops, quarter * HOP : (quarter + 1) * HOP]
        for samples, hop in zip(out, range(first, first + hops), strict=True):
            samples *= _scale(hop, total)
        self._frames += len(waves)
        self._recent = known[len(known) - (OVERLAP - 1) :].copy()
        return out[max(0, PADDING_HOPS - first) :].reshape(-1)


def _scale(hop: int, total: int | None) -> NDArray[np.float32]:
    """What a hop is multiplied by: [HOP]; `total` is the number of frames once it is known."""
    present = (hop >= quarter and (total is None or hop - quarter < total) for quarter in range(OVERLAP))
    return _inverse_window_sum(tuple(present))


@functools.lru_cache(maxsize=1 << OVERLAP)
def _inverse_window_sum(present: tuple[bool, ...]) -> NDArray[np.float32]:
    total = np.zeros(HOP, np.float32)
    for quarter, exists in enumerate(present):
        if exists:
            total += (WINDOW * WINDOW)[quarter * HOP : (quarter + 1) * HOP]
    np.maximum(total, _SMALLEST_NORM, out=total)
    return np.reciprocal(total)
