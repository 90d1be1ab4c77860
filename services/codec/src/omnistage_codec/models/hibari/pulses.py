"""The source of voiced sound: a band-limited pulse train that follows the fundamental frequency.

All harmonics below 11 kHz at unit amplitude add up to the Dirichlet kernel,
    sum_{h=1..H} cos(h t) = sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2,
with t the phase of the fundamental. The frequency between frame centres is interpolated linearly, so a frame's samples
need the frequency of the frame before and of the one after.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models.hibari.layout import HOP, SAMPLE_RATE_HZ

VOICED_ABOVE_HZ = 40.0
HIGHEST_HARMONIC_HZ = 11_000.0
_NEAR_ZERO = 2e-3  # below this the quotient is taken as its limit, H + 1/2, as the voice was trained with

_HALF = HOP // 2
# Sample j of frame k lies at k + (j + 0.5) / HOP - 0.5 in units of frames: between k - 1 and k, then k and k + 1.
_TOWARDS_LATER = (((np.arange(HOP) + 0.5) / HOP - 0.5) % 1.0).astype(np.float32)
_TOWARDS_EARLIER = (1.0 - _TOWARDS_LATER).astype(np.float32)


class PulseTrain:
    """The pulse train of one segment, frame by frame; its state is the phase that was reached."""

    def __init__(self) -> None:
        # In hertz-samples, modulo the sample rate: one turn is SAMPLE_RATE_HZ. Wrapped at each frame, which keeps it
        # exact for segments of any length and the same for any chunking.
        self._turned = 0.0

    def extend(self, f0: NDArray[np.float32]) -> NDArray[np.float32]:
        """Samples of the next n frames.

        Args:
            f0: [n + 2] Hz: the frame before, the n frames, the frame after (at a segment's edge, the edge frame again).

        Returns:
            [n, HOP] float32.
        """
        hz = _interpolate(f0)
        voiced = hz > VOICED_ABOVE_HZ
        np.maximum(hz, np.float32(VOICED_ABOVE_HZ), out=hz)
        phase = self._advance(hz)
        harmonics = np.floor(np.float32(HIGHEST_HARMONIC_HZ) / hz)
        train = _dirichlet(phase, harmonics)
        train[~voiced] = 0.0
        return train

    def _advance(self, hz: NDArray[np.float32]) -> NDArray[np.float32]:
        """Phase in [0, 2 pi) of each sample [n, HOP], moving the state on."""
        turned = np.cumsum(hz, axis=1, dtype=np.float64)
        for row in turned:
            row += self._turned
            self._turned = float(row[-1]) % SAMPLE_RATE_HZ
        turned *= 1.0 / SAMPLE_RATE_HZ
        turned -= np.floor(turned)
        turned *= 2.0 * np.pi
        return turned.astype(np.float32)


def _interpolate(f0: NDArray[np.float32]) -> NDArray[np.float32]:
    """Frequency of each sample: [n + 2] frames -> [n, HOP]."""
    before, here, after = f0[:-2, None], f0[1:-1, None], f0[2:, None]
    hz = np.empty((len(here), HOP), np.float32)
    hz[:, :_HALF] = before * _TOWARDS_EARLIER[:_HALF] + here * _TOWARDS_LATER[:_HALF]
    hz[:, _HALF:] = here * _TOWARDS_EARLIER[_HALF:] + after * _TOWARDS_LATER[_HALF:]
    return hz


def _dirichlet(phase: NDArray[np.float32], harmonics: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum of the first `harmonics` cosines at each phase."""
    order = harmonics + np.float32(0.5)
    below = np.float32(2.0) * np.sin(phase * np.float32(0.5))
    at_peak = np.abs(below) <= _NEAR_ZERO
    below[at_peak] = 1.0
    kernel: NDArray[np.float32] = np.sin(order * phase)
    kernel /= below
    kernel[at_peak] = order[at_peak]
    kernel -= np.float32(0.5)
    return kernel
