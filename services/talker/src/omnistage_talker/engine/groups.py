"""Cuts the frames of a segment into the chunks that are sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnistage_talker.models.base import FrameArray


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """Frames per chunk: small at first, so that the codec begins at once, then larger.

    Attributes:
        first_frames: of a segment's first chunk.
        factor: by what each chunk is larger than the one before.
        max_frames: at most.
    """

    first_frames: int = 16
    factor: float = 2.0
    max_frames: int = 64

    def size(self, index: int) -> int:
        """Frames of a segment's chunk number `index` (the last one may be smaller)."""
        return int(min(self.max_frames, self.first_frames * self.factor ** min(index, 32)))


class FrameGrouper:
    """Takes a segment's frames as they come and gives chunks whose sizes depend on the number of frames alone."""

    def __init__(self, sizes: GroupSizes) -> None:
        self._sizes = sizes
        self._index = 0
        self._held: FrameArray | None = None

    def push(self, frames: FrameArray) -> Iterator[FrameArray]:
        """The chunks that are complete and cannot be the last. At least one frame is kept back for the last one."""
        held = frames if self._held is None else np.concatenate((self._held, frames))
        while len(held) > (size := self._sizes.size(self._index)):
            yield held[:size].copy()
            held = held[size:]
            self._index += 1
        self._held = held

    def finish(self) -> FrameArray | None:
        """The last chunk; None if there were no frames at all."""
        return None if self._held is None else self._held.copy()
