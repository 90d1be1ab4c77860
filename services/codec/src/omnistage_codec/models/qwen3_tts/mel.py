"""Log mel spectrograms for the speaker encoder: 1024-sample windows every 256 samples, 128 bands to 12 kHz.

Bands are triangles on Slaney's scale, linear below 1 kHz and logarithmic above, each of unit area (Slaney, Auditory
Toolbox, 1998).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

N_FFT = 1024
HOP = 256
_PAD = (N_FFT - HOP) // 2
_SMALLEST_POWER = 1e-9
_SMALLEST_BAND = 1e-5
_BREAK_HZ = 1000.0
_LINEAR_HZ = 200.0 / 3.0
_LOG_STEP = np.log(6.4) / 27.0


def _to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HZ / _LINEAR_HZ + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ, above)


def _to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    knee = _BREAK_HZ / _LINEAR_HZ
    return np.where(mel < knee, mel * _LINEAR_HZ, _BREAK_HZ * np.exp(_LOG_STEP * (mel - knee)))


def mel_bands(bands: int, sample_rate_hz: int) -> NDArray[np.float32]:
    """Weights [bands, bins] of the triangles, from 0 Hz to half the rate."""
    nyquist = sample_rate_hz / 2.0
    top = _to_mel(np.array([nyquist]))[0]
    edges = _to_hz(np.linspace(0.0, top, bands + 2))
    bins = np.linspace(0.0, nyquist, N_FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def samples_for(columns: int) -> int:
    """The fewest samples that make so many columns; reflecting the edges needs more of them than the padding has."""
    return max(_PAD + 1, (columns - 1) * HOP + N_FFT - 2 * _PAD)


class LogMel:
    """Waveform to log mel spectrogram, in float32."""

    def __init__(self, bands: int, sample_rate_hz: int, device: str) -> None:
        self._bands = torch.from_numpy(mel_bands(bands, sample_rate_hz)).to(device)
        self._window = torch.hann_window(N_FFT, device=device)

    def __call__(self, samples: Tensor) -> Tensor:
        """[samples] (at least `samples_for(1)`) -> [time, bands]; 93.75 columns a second at 24 kHz."""
        padded = functional.pad(samples[None, None], (_PAD, _PAD), mode="reflect")[0, 0]
        spectrum = torch.fft.rfft(padded.unfold(0, N_FFT, HOP) * self._window)
        magnitude = torch.sqrt(spectrum.real.square() + spectrum.imag.square() + _SMALLEST_POWER)
        return torch.log((magnitude @ self._bands.T).clamp(min=_SMALLEST_BAND))
