"""What a new holder of a request need not decode again: pure policy."""

from __future__ import annotations

from omnistage.errors import StageFailed
from omnistage_codec.engine.batches import Frames


class DeliveredFilter:
    """Holds back the chunks of segments whose samples were all delivered.

    Segments are decoded independently, and n frames give n times a fixed number of samples. So a segment that lies
    wholly before `skip_samples` is dropped undecoded; the one in which that point lies is decoded from its start.
    """

    def __init__(self, *, skip_samples: int, samples_per_frame: int) -> None:
        self._skip = skip_samples
        self._per_frame = samples_per_frame
        self._start = 0
        self._held: list[Frames] = []

    def push(self, chunk: Frames) -> tuple[int, list[Frames]]:
        """Take a chunk; returns how many samples were passed over, and the chunks to be decoded now."""
        if self._start >= self._skip:
            return 0, [chunk]
        self._held.append(chunk)
        end = self._start + self._per_frame * sum(len(part.frames) for part in self._held)
        if end > self._skip:
            released, self._held = self._held, []
            self._start = self._skip
            return 0, released
        if not chunk.segment_end:
            return 0, []
        passed, self._start, self._held = end - self._start, end, []
        return passed, []

    def finish(self) -> None:
        """The stream of chunks is over. Raises StageFailed if that is within a segment that was held back."""
        if self._held:
            raise StageFailed(f"the frames ended within segment {self._held[0].segment}")
