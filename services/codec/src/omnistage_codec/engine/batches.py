"""Which of the frames that wait are decoded next: pure policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnistage_codec.models.base import FrameArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames:
    """Consecutive frames of one segment; fields as in `omnistage.contracts.FrameChunk`.

    Attributes:
        frames: [n, width].
        segment: number of the segment.
        segment_frame: index within the segment of the first frame.
        segment_end: whether the segment ends with them.
        text: what the segment says, on its first batch.
    """

    frames: FrameArray
    segment: int
    segment_frame: int
    segment_end: bool
    text: str = ""


def continues(batch: Sequence[Frames], following: Frames) -> bool:
    """Whether a chunk goes on with the segment of those already chosen."""
    return not batch or (following.segment == batch[0].segment and not batch[-1].segment_end)


def fits(batch: Sequence[Frames], following: Frames, limit: int) -> bool:
    """Whether a chunk may be decoded together with those already chosen."""
    room = limit - sum(len(part.frames) for part in batch)
    return not batch or (continues(batch, following) and len(following.frames) <= room)


def split(chunk: Frames, count: int) -> tuple[Frames, Frames]:
    """The first `count` frames of a chunk, which carry its text, and the rest, which ends what it ends."""
    return (
        replace(chunk, frames=chunk.frames[:count], segment_end=False),
        replace(chunk, frames=chunk.frames[count:], segment_frame=chunk.segment_frame + count, text=""),
    )


def joined(batch: Sequence[Frames]) -> Frames:
    """Consecutive chunks of one segment as one."""
    if len(batch) == 1:
        return batch[0]
    frames = np.concatenate([chunk.frames for chunk in batch])
    return replace(batch[0], frames=frames, segment_end=batch[-1].segment_end)


def enough(waiting: Sequence[Frames], wanted: int) -> bool:
    """Whether there are so many frames of the next segment, or it ends before."""
    count = 0
    for chunk in waiting:
        count += len(chunk.frames)
        if count >= wanted or chunk.segment_end:
            return True
    return False
