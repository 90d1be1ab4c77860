"""Log-mel spectrograms of speech (Radford et al., "Robust speech recognition via large-scale weak supervision", 2022).

Samples at 16 kHz; windows of 25 ms every 10 ms, 128 triangular filters on Slaney's mel scale, the logarithm kept within
8 decades of a clip's loudest value.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from omnistage.errors import InvalidRequest

SAMPLE_RATE_HZ = 16_000
HOP = 160
_WINDOW = 400
_FLOOR = 1e-10
_RANGE_DECADES = 8.0
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_KNEE_HZ = 1000.0
_MELS_PER_E = 27.0 / log(6.4)
"""Above the knee the scale is logarithmic: 27 mels for each factor of 6.4."""


class LogMel:
    """Waveforms to spectrograms.

    Args:
        bins: filters.
    """

    def __init__(self, bins: int) -> None:
        self._filters = _filters(bins)
        self._window = torch.hann_window(_WINDOW)

    def __call__(self, samples: Tensor) -> Tensor:
        """[samples] float32 at `SAMPLE_RATE_HZ` -> [bins, samples // `HOP`] float32.

        Raises:
            InvalidRequest: the clip is shorter than a window, or not finite.
        """
        if len(samples) < _WINDOW:
            raise InvalidRequest(f"the recording has {len(samples)} samples at 16 kHz, at least {_WINDOW} are needed")
        if not bool(torch.isfinite(samples).all()):
            raise InvalidRequest("the recording holds values that are not finite")
        spectrum = torch.stft(samples.float(), _WINDOW, HOP, window=self._window, return_complex=True)
        # The last column is centred behind the clip's end.
        power = spectrum[:, :-1].abs().square()
        decades = torch.clamp(self._filters @ power, min=_FLOOR).log10()
        return (torch.maximum(decades, decades.max() - _RANGE_DECADES) + 4.0) / 4.0


def _filters(bins: int) -> Tensor:
    """[bins, frequencies]: triangles between neighbours on the mel scale, of equal area."""
    top_mel = _KNEE_HZ / _LINEAR_HZ_PER_MEL + _MELS_PER_E * log(SAMPLE_RATE_HZ / 2 / _KNEE_HZ)
    edges = _to_hz(torch.linspace(0.0, top_mel, bins + 2, dtype=torch.float64))
    frequencies = torch.linspace(0.0, SAMPLE_RATE_HZ / 2, _WINDOW // 2 + 1, dtype=torch.float64)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    triangles = torch.clamp(torch.minimum(rising, falling), min=0.0)
    return (triangles * 2.0 / (high - low)).float()


def _to_hz(mels: Tensor) -> Tensor:
    knee = _KNEE_HZ / _LINEAR_HZ_PER_MEL
    return torch.where(mels < knee, mels * _LINEAR_HZ_PER_MEL, _KNEE_HZ * torch.exp((mels - knee) / _MELS_PER_E))
