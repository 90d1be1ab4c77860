"""Which of the frames that wait are decoded next: pure policy."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class GrowthPolicy:
    """How many frames are decoded at once: few at first, so that sound begins; more as the client's buffer fills.

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


def fits(batch: list[Frames], following: Frames, limit: int) -> bool:
    """Whether a chunk may be decoded together with those already chosen."""
    if not batch:
        return True
    same = following.segment == batch[0].segment and not batch[-1].segment_end
    return same and sum(len(part.frames) for part in batch) + len(following.frames) <= limit
