"""The spectrum of a frame: filtered pulses, shaped noise and a free-phase part.

    S = exp(lh) e^(i pi tanh(theta)) STFT(pulses) + exp(ln) Z + exp(lr) e^(i phi)

The short-time transform is centred: frame k sees the 1200 samples around sample 300 k, under a periodic Hann window.
Multiplications of complex numbers are written out over float32 planes: each product and sum is then rounded by itself,
and no choice of vector instructions can make a bit depend on a frame's place in its block.
"""

from __future__ import annotations

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from omnistage_codec.models.hibari.layout import BINS, HOP, columns

N_FFT = 2 * (BINS - 1)
OVERLAP = N_FFT // HOP
BLOCK = 16
"""Frames transformed together. Smaller blocks are filled up, so that each frame takes the same instructions whatever
its company (vector units take up to 16 floats), and 16 frames stay within the second-level cache."""

WINDOW: NDArray[np.float32] = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
# A unit cosine then has magnitude 1 at its bin: exp(lh) is the harmonic's amplitude.
_ANALYSIS_WINDOW = WINDOW / np.float32(N_FFT / 4)
_LOG_LIMIT = np.float32(7.0)


def analyse(windows: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Spectra of pulses: [n <= BLOCK, N_FFT] samples -> [n, BINS]."""
    block = np.zeros((BLOCK, N_FFT), np.float32)
    np.multiply(windows, _ANALYSIS_WINDOW, out=block[: len(windows)])
    spectra: NDArray[np.complex64] = scipy.fft.rfft(block, axis=1, overwrite_x=True)
    return spectra[: len(windows)]


def synthesise(spectra: NDArray[np.complex64]) -> NDArray[np.float32]:
    """Windowed waveforms of frames: [n <= BLOCK, BINS] -> [n, N_FFT]."""
    block = np.zeros((BLOCK, BINS), np.complex64)
    block[: len(spectra)] = spectra
    waves: NDArray[np.float32] = scipy.fft.irfft(block, n=N_FFT, axis=1)[: len(spectra)]
    waves *= WINDOW
    return waves


def shape(
    frames: NDArray[np.float32], windows: NDArray[np.float32], noise: NDArray[np.complex64]
) -> NDArray[np.complex64]:
    """The spectra S of frames.

    Args:
        frames: [n <= BLOCK, WIDTH] in the layout hibari-v1.
        windows: [n, N_FFT] samples of the pulse train around each frame.
        noise: [n, BINS] normal noise Z.

    Returns:
        [n, BINS].
    """
    noise_gain = _gain(frames, "ln")
    free_gain = _gain(frames, "lr")
    phi = np.ascontiguousarray(frames[:, columns("phi")])
    out = np.empty((len(frames), BINS), np.complex64)
    out.real = np.cos(phi) * free_gain + noise.real * noise_gain
    out.imag = np.sin(phi) * free_gain + noise.imag * noise_gain
    voiced = np.flatnonzero(windows.any(axis=1))
    if len(voiced):
        _add_harmonics(out, frames[voiced], analyse(windows[voiced]), voiced)
    return out


def _add_harmonics(
    out: NDArray[np.complex64],
    frames: NDArray[np.float32],
    pulses: NDArray[np.complex64],
    rows: NDArray[np.intp],
) -> None:
    """Add the filtered pulses of the given rows."""
    turn = np.tanh(frames[:, columns("theta")]) * np.float32(np.pi)
    gain = _gain(frames, "lh")
    cosine = np.cos(turn) * gain
    sine = np.sin(turn) * gain
    out.real[rows] += pulses.real * cosine - pulses.imag * sine
    out.imag[rows] += pulses.real * sine + pulses.imag * cosine


def _gain(frames: NDArray[np.float32], branch: str) -> NDArray[np.float32]:
    """Magnitudes [n, BINS] of a branch given by their logarithms, limited to e^7."""
    gain: NDArray[np.float32] = np.exp(np.minimum(frames[:, columns(branch)], _LOG_LIMIT))
    return gain
