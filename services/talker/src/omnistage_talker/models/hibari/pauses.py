"""Pauses between clauses.

The voice begins and ends whatever it speaks with silence: about 0.3 s and 0.4 s, which makes slow answers of short
sentences and gaps of cut ones. The silence is therefore cut down: to almost none before an answer's first sound, to
0.45 s between sentences, to that of a comma or less within them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnistage_talker.models.base import Clause, FrameArray
from omnistage_talker.models.hibari import layout

_COMMAS = ",;:—…"

_QUIET_BELOW = -2.0
"""Log magnitude. A frame without pitch whose noise lies below it in all bins is some 45 dB under the voice."""

_VOICED_ABOVE_HZ = 40.0
_LEAD_FRAMES = 4
_SENTENCE_LEAD_FRAMES = 18
_SENTENCE_TAIL_FRAMES = 18
_COMMA_FRAMES = 10
_WORD_FRAMES = 2
_LEAST_TAIL_FRAMES = 4


@dataclass(frozen=True, kw_only=True)
class Silence:
    """What is kept of it around a run of the voice.

    Attributes:
        lead: frames before the first sound, at most, at speed 1.
        tail: frames after the last one, likewise.
        sentence_end: whether a sentence ends there: its length may then be adjusted.
    """

    lead: int
    tail: int
    sentence_end: bool


def silence_around(clause: Clause, phonemes: str, *, segment: int, first: bool, last: bool) -> Silence:
    """The silence to keep; a function of the clause and its place alone.

    Args:
        clause: the clause.
        phonemes: of the run.
        segment: number of the clause's segment; nothing was heard before 0.
        first, last: whether the run is the clause's first, or last.
    """
    sentence_start = segment > 0 and first and clause.sentence_start
    sentence_end = last and clause.sentence_end
    within = _COMMA_FRAMES if phonemes[-1] in _COMMAS else _WORD_FRAMES
    return Silence(
        lead=_SENTENCE_LEAD_FRAMES if sentence_start else _LEAD_FRAMES,
        tail=_SENTENCE_TAIL_FRAMES if sentence_end else within,
        sentence_end=sentence_end,
    )


def shorten_pauses(frames: FrameArray, silence: Silence, *, speed: float = 1.0) -> FrameArray:
    """Frames without most of the silence at their edges.

    Args:
        frames: [n, WIDTH] in the layout hibari-v1.
        silence: what to keep of it.
        speed: of the speech; pauses last the shorter the faster it is.

    Returns:
        [m, WIDTH] with 0 < m <= n; all of it where nothing is to be heard.
    """
    audible = np.flatnonzero(_audible(frames))
    if not len(audible):
        return frames
    start = max(0, int(audible[0]) - round(silence.lead / speed))
    return frames[start : int(audible[-1]) + 1 + round(silence.tail / speed)]


def fit_tail(frames: FrameArray, wanted: int) -> FrameArray:
    """Frames made `wanted` long by silence at their end; longer if that would cut into the sound."""
    audible = np.flatnonzero(_audible(frames))
    least = min(len(frames), int(audible[-1]) + 1 + _LEAST_TAIL_FRAMES) if len(audible) else 1
    length = max(wanted, least)
    if length <= len(frames):
        return frames[:length]
    return np.concatenate((frames, np.repeat(frames[-1:], length - len(frames), axis=0)))


def _audible(frames: FrameArray) -> FrameArray:
    """[n] bool."""
    noise = np.maximum(frames[:, layout.columns("ln")].max(axis=1), frames[:, layout.columns("lr")].max(axis=1))
    loud: FrameArray = (noise > _QUIET_BELOW) | (frames[:, layout.F0_COLUMN] > _VOICED_ABOVE_HZ)
    return loud
