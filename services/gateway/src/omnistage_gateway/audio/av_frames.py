"""Between numpy and PyAV: frames, and PyAV's errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np

from omnistage.errors import StageFailed
from omnistage_gateway.audio.encoder import Samples


def frame_of(samples: Samples, rate_hz: int, position: int) -> av.AudioFrame:
    """[samples] int16 as a mono frame whose first sample is the stream's number `position`."""
    packed = np.ascontiguousarray(samples, dtype=np.int16).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(packed, format="s16", layout="mono")
    frame.sample_rate = rate_hz
    frame.pts = position
    frame.time_base = Fraction(1, rate_hz)
    return frame


@contextmanager
def mapped_errors(what: str) -> Iterator[None]:
    """Errors of PyAV inside become StageFailed.

    Raises:
        StageFailed: libav refused.
    """
    try:
        yield
    except av.FFmpegError as error:
        raise StageFailed(f"{what} failed: {error.strerror}", code="encoder_failed", stage="gateway") from error
