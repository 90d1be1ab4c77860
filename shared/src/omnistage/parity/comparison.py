"""How far a computed array is from the recorded one, and how far it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Tolerance:
    """Largest absolute differences in float32 on a CPU; about ten times what two ways of computing differ by.

    Integers are exact. The numbers are those that the golden fixtures were published with.
    """

    CODES: Final = 0.0
    EMBEDDINGS: Final = 1e-4
    HIDDEN_STATES: Final = 1e-4
    LOGITS: Final = 2e-4
    WAVEFORM: Final = 1e-5
    LOG_MEL: Final = 1e-4
    SPEAKER_EMBEDDING: Final = 1e-4


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row of a parity table.

    Attributes:
        part: fixture and tensor, e.g. "codec.decode: wave_25".
        shape: sizes of the axes.
        error: largest absolute difference; infinite if the shapes differ or a value is no number.
        allowed: the largest error that passes.
    """

    part: str
    shape: tuple[int, ...]
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


def compare(part: str, actual: ArrayLike, expected: ArrayLike, allowed: float) -> Comparison:
    """Compare element by element, in float64."""
    mine, recorded = np.asarray(actual), np.asarray(expected)
    return Comparison(part=part, shape=recorded.shape, error=_largest_difference(mine, recorded), allowed=allowed)


def _largest_difference(mine: NDArray[Any], recorded: NDArray[Any]) -> float:
    if mine.shape != recorded.shape:
        return float("inf")
    if not mine.size:
        return 0.0
    largest = float(np.max(np.abs(mine.astype(np.float64) - recorded.astype(np.float64))))
    return largest if np.isfinite(largest) else float("inf")
