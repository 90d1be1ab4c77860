"""Notices that a model speaks on and on: longer than its text can be, in silence, or in a loop. Pure.

What sounds the same has the same first code: silence is a few codes that do not change, a loop is codes that come again
after a while. Speech itself does neither for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class RunawayLimits:
    """From where on speech counts as runaway.

    A text token is a quarter of a second of speech in the mean and a second at most, even of digits; slow styles and
    pauses are allowed for by the rest.

    Attributes:
        frames_per_token: frames that a text token may take.
        extra_frames: frames beside those.
        silent_frames: so many frames of at most `silent_codes` different first codes are silence.
        silent_codes: see there.
        loop_frames: so many frames, and `loop_rounds` rounds at least, that repeat what came before are a loop.
        loop_rounds: see there.
        loop_share: share of them that must be equal.
        loop_period_frames: the longest loop that is looked for.
    """

    frames_per_token: float = 12.5
    extra_frames: int = 100
    silent_frames: int = 100
    silent_codes: int = 2
    loop_frames: int = 75
    loop_rounds: int = 3
    loop_share: float = 0.95
    loop_period_frames: int = 64


_LOOK_EVERY = 4
"""Frames between two looks for loops, which cost more than counting."""


class RunawayGuard:
    """Follows one request; tells the same whatever the frames came in.

    Args:
        limits: see there.
    """

    def __init__(self, limits: RunawayLimits) -> None:
        self._limits = limits
        self._codes: list[int] = []

    def fault(self, code: int, text_tokens: int) -> str | None:
        """Take the next frame's first code.

        Args:
            code: of group 0.
            text_tokens: of the text so far.

        Returns:
            What is wrong by now, or None.
        """
        codes, limits = self._codes, self._limits
        codes.append(code)
        ceiling = limits.extra_frames + limits.frames_per_token * text_tokens
        if len(codes) > ceiling:
            return f"{len(codes)} frames for a text of {text_tokens} tokens"
        recent = codes[-limits.silent_frames :]
        if len(recent) == limits.silent_frames and len(set(recent)) <= limits.silent_codes:
            return f"silence for {limits.silent_frames} frames"
        if len(codes) % _LOOK_EVERY == 0:
            for period in self._loops():
                return f"a loop of {period} frames"
        return None

    def _loops(self) -> Iterator[int]:
        limits = self._limits
        longest = max(limits.loop_frames, limits.loop_rounds * limits.loop_period_frames)
        recent = np.array(self._codes[-longest - limits.loop_period_frames :])
        for period in range(1, limits.loop_period_frames + 1):
            length = max(limits.loop_frames, limits.loop_rounds * period)
            if len(recent) < length + period:
                return
            same = recent[-length:] == recent[-length - period : -period]
            if same.mean() >= limits.loop_share:
                yield period
