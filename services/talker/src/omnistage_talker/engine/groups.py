"""Cuts the frames of a segment into the chunks that are sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnistage_talker.models.base import FrameArray


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """Frames per chunk: small at first, so that the codec begins at once, then larger.

    When a later segment begins, sound of the one before is still waiting to be played; small chunks would only cost
    messages there. The defaults are for models that give a clause's frames all at once: while the first chunk's 0.2 s
    of sound are played, the codec decodes the 1.2 s of the second, and each message less is one less on every hop.

    Attributes:
        first_frames: of the first segment's first chunk.
        factor: by what each chunk is larger than the one before.
        max_frames: at most, and of every chunk of later segments.
    """

    first_frames: int = 16
    factor: float = 6.0
    max_frames: int = 512

    def size(self, segment: int, index: int) -> int:
        """Frames of a segment's chunk number `index` (the last one may be smaller)."""
        if segment > 0:
            return self.max_frames
        return int(min(self.max_frames, self.first_frames * self.factor ** min(index, 32)))


class FrameGrouper:
    """Takes a segment's frames as they come and gives chunks whose sizes depend on the number of frames alone."""

    def __init__(self, sizes: GroupSizes, segment: int = 0) -> None:
        self._sizes = sizes
        self._segment = segment
        self._index = 0
        self._held: FrameArray | None = None

    def push(self, frames: FrameArray) -> Iterator[FrameArray]:
        """The chunks that are complete and cannot be the last. At least one frame is kept back for the last one."""
        held = frames if self._held is None else np.concatenate((self._held, frames))
        while len(held) > (size := self._sizes.size(self._segment, self._index)):
            yield held[:size]
            held = held[size:]
            self._index += 1
        self._held = held

    def finish(self) -> FrameArray | None:
        """The last chunk; None if there were no frames at all."""
        return self._held
