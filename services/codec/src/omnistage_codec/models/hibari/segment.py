"""The synthesis of one segment as its frames arrive: pulses, spectra, overlap-add, each as far as is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models.hibari.layout import F0_COLUMN, HOP, WIDTH
from omnistage_codec.models.hibari.noise import FrameNoise
from omnistage_codec.models.hibari.overlap import OverlapAdd
from omnistage_codec.models.hibari.pulses import PulseTrain
from omnistage_codec.models.hibari.spectrum import BLOCK, N_FFT, shape, synthesise

LOOKAHEAD_FRAMES = 4
"""Frames by which samples trail: one for the frequency's interpolation, one for the window of a frame's spectrum, two
for the overlap-add."""

_PAD = N_FFT // 2


class SegmentSynthesis:
    """State of one segment.

    Attributes:
        received: how many frames have come.
    """

    def __init__(self, segment: int, noise: FrameNoise) -> None:
        self.received = 0
        self._segment = segment
        self._noise = noise
        self._pulses = PulseTrain()
        self._overlap = OverlapAdd()
        self._f0 = np.empty(0, np.float32)  # from the frame before the next one to get pulses
        self._pulsed = 0
        self._waiting = np.empty((0, WIDTH), np.float32)  # frames whose spectrum is still to be made
        self._shaped = 0
        self._line = np.empty(0, np.float32)  # pulse train; once padded, from 600 samples before the waiting frames
        self._padded = False

    def extend(self, frames: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        """Samples that the next frames make final: [n, WIDTH] -> [m], m a multiple of HOP."""
        if last and self.received + len(frames) == 0:
            return np.empty(0, np.float32)
        self.received += len(frames)
        self._waiting = np.concatenate((self._waiting, frames))
        self._extend_pulses(frames[:, F0_COLUMN], last=last)
        ready = len(self._waiting) if last else max(0, self._pulsed - 1 - self._shaped)
        waves = [self._make_waves(min(BLOCK, ready - start)) for start in range(0, ready, BLOCK)]
        joined = np.concatenate(waves) if waves else np.empty((0, N_FFT), np.float32)
        return self._overlap.extend(joined, last=last)

    def _extend_pulses(self, f0: NDArray[np.float32], *, last: bool) -> None:
        """Lengthen the pulse train as far as the frequency is known on both sides."""
        self._f0 = np.concatenate((self._f0, f0))
        if self._pulsed == 0 and len(f0) == len(self._f0):
            self._f0 = np.concatenate((f0[:1], self._f0))
        if last:
            self._f0 = np.concatenate((self._f0, self._f0[-1:]))
        count = len(self._f0) - 2
        if count > 0:
            train = self._pulses.extend(self._f0)
            self._line = np.concatenate((self._line, train.reshape(-1)))
            self._f0 = self._f0[count:]
            self._pulsed += count
        self._pad_line(last=last)

    def _pad_line(self, *, last: bool) -> None:
        """Reflect the pulse train at the segment's edges, as soon as enough of it is known."""
        if last and self._pulsed == 1:
            self._line = np.pad(self._line, _PAD, mode="reflect")
            self._padded = True
            return
        if not self._padded and self._pulsed >= 2:
            # The outermost sample would be one beyond the two hops needed here; the window is zero there.
            head = np.concatenate((np.zeros(1, np.float32), self._line[_PAD - 1 : 0 : -1]))
            self._line = np.concatenate((head, self._line))
            self._padded = True
        if last:
            self._line = np.concatenate((self._line, self._line[-2 : -2 - HOP : -1]))

    def _make_waves(self, count: int) -> NDArray[np.float32]:
        """Waveforms [count, N_FFT] of the next waiting frames."""
        windows = np.lib.stride_tricks.sliding_window_view(self._line, N_FFT)[::HOP][:count]
        noise = self._noise.frames(self._segment, self._shaped, count)
        waves = synthesise(shape(self._waiting[:count], windows, noise))
        self._waiting = self._waiting[count:]
        self._line = self._line[count * HOP :]
        self._shaped += count
        return waves
