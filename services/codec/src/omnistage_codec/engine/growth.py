"""How many frames a request's next step is to have: pure policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from omnistage.urgency import Reading


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a request is.

    Attributes:
        steps: steps that it has had.
        last_frames: frames of the last one.
        buffered_s: seconds of sound that its client has in hand, by our estimate.
        catching_up: whether what comes next was delivered by an earlier holder, and is made for the state alone.
        reading: how the client takes the sound.
        first_frames: frames of the first step, if the client has said; else 0.
    """

    steps: int
    last_frames: int
    buffered_s: float
    catching_up: bool = False
    reading: Reading = "stream"
    first_frames: int = 0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the next step is to be.

    Attributes:
        wanted: frames that are worth waiting for.
        patience_s: how long, at most; None: until they are there.
        limit: most frames of the step.
        split: whether a chunk that holds more is cut; else it goes whole.
    """

    wanted: int = 1
    patience_s: float | None = 0.0
    limit: int
    split: bool = False


class Growth(Protocol):
    """Decides before each step."""

    def wish(self, progress: Progress) -> Wish: ...


@dataclass(frozen=True, kw_only=True)
class GrowthPolicy:
    """Whatever waits, up to a limit: low at first, so that sound begins; higher as the client's buffer fills.

    For families whose steps cost as much for a frame as they do for many frames each.

    Attributes:
        first_frames: most frames of the first step, beyond its first chunk.
        factor: by what the limit grows with each step.
        max_frames: most frames of any step (also how long a cancelled step goes on).
    """

    first_frames: int = 16
    factor: float = 2.0
    max_frames: int = 512

    def limit(self, step: int) -> int:
        """Most frames of the step (0-based); a single chunk may be larger."""
        grown = self.first_frames * self.factor ** min(step, 32)
        return int(min(self.max_frames, grown))

    def wish(self, progress: Progress) -> Wish:
        return Wish(limit=self.limit(progress.steps))


_CAUGHT_UP_FRAMES = 256
"""Most frames of a step whose samples nobody needs: such steps cost little."""


@dataclass(frozen=True, kw_only=True)
class BufferedGrowth:
    """Few frames first, then as many as the client's buffer can wait for.

    For families whose steps get cheaper per frame the more frames they have, and whose frames come slowly.

    Attributes:
        frame_rate_hz: frames per second of sound.
        first_frames: frames of the first step.
        factor: a step has at most this many times the frames of the one before it.
        max_frames: most frames of any step.
        spend: share of the buffer that may pass while frames are waited for.
        margin_s: part of the buffer that is never spent.
    """

    frame_rate_hz: float
    first_frames: int = 1
    factor: float = 2.0
    max_frames: int = 25
    spend: float = 0.5
    margin_s: float = 0.05

    def wish(self, progress: Progress) -> Wish:
        if progress.catching_up:
            return Wish(limit=_CAUGHT_UP_FRAMES, split=True)
        if progress.reading != "stream":
            return Wish(wanted=self.max_frames, patience_s=None, limit=self.max_frames, split=True)
        if progress.steps == 0:
            first = min(progress.first_frames or self.first_frames, self.max_frames)
            return Wish(wanted=first, patience_s=None, limit=first, split=True)
        spare_s = max(0.0, progress.buffered_s - self.margin_s) * self.spend
        limit = min(self.max_frames, max(1, math.ceil(progress.last_frames * self.factor)))
        wanted = min(limit, max(1, int(spare_s * self.frame_rate_hz)))
        return Wish(wanted=wanted, patience_s=spare_s, limit=limit, split=True)
