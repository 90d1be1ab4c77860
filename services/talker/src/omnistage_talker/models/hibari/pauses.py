"""Pauses where a sentence was cut.

The voice begins and ends whatever it speaks with silence, as befits a sentence: about 0.3 s and 0.4 s. Within a
sentence that would be a gap, so there the silence is cut down to that of a comma, or to almost none.
"""

from __future__ import annotations

import numpy as np

from omnistage_talker.models.base import FrameArray
from omnistage_talker.models.hibari import layout

COMMAS = ",;:—…"

_QUIET_BELOW = -2.0
"""Log magnitude. A frame without pitch whose noise lies below it in all bins is some 45 dB under the voice."""

_VOICED_ABOVE_HZ = 40.0
_LEAD_FRAMES = 4
_COMMA_FRAMES = 10
_WORD_FRAMES = 2


def shorten_pauses(frames: FrameArray, *, speed: float = 1.0, before: bool, after: bool, comma: bool) -> FrameArray:
    """Frames without most of the silence at their edges.

    Args:
        frames: [n, WIDTH] in the layout hibari-v1.
        speed: of the speech; pauses last the shorter the faster it is.
        before: whether to shorten the beginning, since the sentence began earlier.
        after: whether to shorten the end, since the sentence goes on.
        comma: whether it goes on after a comma or the like.

    Returns:
        [m, WIDTH] with 0 < m <= n; all of it where nothing is to be heard.
    """
    audible = np.flatnonzero(_audible(frames))
    if not len(audible):
        return frames
    start = max(0, int(audible[0]) - round(_LEAD_FRAMES / speed)) if before else 0
    kept = round((_COMMA_FRAMES if comma else _WORD_FRAMES) / speed)
    end = int(audible[-1]) + 1 + kept if after else len(frames)
    return frames[start:end]


def _audible(frames: FrameArray) -> FrameArray:
    """[n] bool."""
    noise = np.maximum(frames[:, layout.columns("ln")].max(axis=1), frames[:, layout.columns("lr")].max(axis=1))
    loud: FrameArray = (noise > _QUIET_BELOW) | (frames[:, layout.F0_COLUMN] > _VOICED_ABOVE_HZ)
    return loud
