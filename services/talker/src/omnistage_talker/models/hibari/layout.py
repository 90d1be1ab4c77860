"""The frame layout `hibari-v1`, as the codec family of that name reads it.

One frame is 12.5 ms (80 frames a second, 300 samples at 24 kHz): a row of 3006 little-endian float32. The spectrum of
a frame has 601 bins (FFT of 1200 samples). Columns, in this order:

    lh     601   log magnitude of the harmonic branch
    theta  601   phase of the harmonic branch, before pi * tanh
    ln     601   log magnitude of the noise branch
    lr     601   log magnitude of the free-phase branch
    phi    601   phase of the free-phase branch, radians
    f0       1   fundamental frequency in Hz; unvoiced below 40

The codec package holds a copy of these names and numbers (services do not import one another).
"""

from __future__ import annotations

LAYOUT = "hibari-v1"
SAMPLE_RATE_HZ = 24_000
FRAME_RATE_HZ = 80.0
HOP = 300
BINS = 601
BRANCHES = ("lh", "theta", "ln", "lr", "phi")
F0_COLUMN = len(BRANCHES) * BINS
WIDTH = F0_COLUMN + 1


def columns(branch: str) -> slice:
    """Where the 601 columns of a branch lie in a frame."""
    start = BRANCHES.index(branch) * BINS
    return slice(start, start + BINS)
