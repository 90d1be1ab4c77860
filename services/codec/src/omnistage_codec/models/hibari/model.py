"""The codec family `hibari`: acoustic frames of the layout hibari-v1 to 24 kHz speech. It has no weights.

The synthesis is that of the package hibari-tts (harmonic plus noise plus free phase, one inverse transform), made to
stream: samples trail the frames by four frames, and are the same bits however the frames are cut.
"""

from __future__ import annotations

import numpy as np

from omnistage.errors import StageFailed
from omnistage_codec.models.base import FrameArray, Samples, WaveFacts
from omnistage_codec.models.hibari import layout
from omnistage_codec.models.hibari.noise import FrameNoise
from omnistage_codec.models.hibari.segment import LOOKAHEAD_FRAMES, SegmentSynthesis

FACTS = WaveFacts(
    family="hibari",
    layout=layout.LAYOUT,
    frame_width=layout.WIDTH,
    frame_dtype="float32",
    frame_rate_hz=layout.FRAME_RATE_HZ,
    sample_rate_hz=layout.SAMPLE_RATE_HZ,
    samples_per_frame=layout.HOP,
    lookahead_frames=LOOKAHEAD_FRAMES,
)


class HibariState:
    """What one request needs between calls: its noise and the segment it is in."""

    def __init__(self, seed: int) -> None:
        self.noise = FrameNoise(seed)
        self.segment: int | None = None
        self.synthesis: SegmentSynthesis | None = None

    def enter(self, segment: int, segment_frame: int) -> SegmentSynthesis:
        """The synthesis that takes the frames from `segment_frame` on; begun anew for a new segment.

        Raises:
            StageFailed: these are not the frames that come next.
        """
        if segment != self.segment:
            if self.synthesis is not None:
                raise StageFailed(f"segment {segment} came before segment {self.segment} had ended")
            self.segment, self.synthesis = segment, SegmentSynthesis(segment, self.noise)
        if self.synthesis is None:
            raise StageFailed(f"frames came after the end of segment {segment}")
        if segment_frame != self.synthesis.received:
            raise StageFailed(
                f"segment {segment} was at frame {self.synthesis.received}, but frame {segment_frame} came"
            )
        return self.synthesis


class HibariWave:
    """Implements `WaveModel`. Voices differ in their frames alone, so the voice's name is of no importance here."""

    @property
    def facts(self) -> WaveFacts:
        return FACTS

    def new_state(self, *, seed: int, voice: str, context: FrameArray | None = None) -> HibariState:
        if context is not None:
            raise StageFailed(f"the layout {layout.LAYOUT} knows no context: segments are independent")
        return HibariState(seed)

    def decode(
        self, state: HibariState, frames: FrameArray, *, segment: int, segment_frame: int, segment_end: bool
    ) -> Samples:
        _check(frames)
        synthesis = state.enter(segment, segment_frame)
        samples = synthesis.extend(frames, last=segment_end)
        if segment_end:
            state.synthesis = None
        return samples


def _check(frames: FrameArray) -> None:
    if frames.ndim != 2 or frames.shape[1] != layout.WIDTH or frames.dtype != np.float32:
        raise StageFailed(
            f"the layout {layout.LAYOUT} is [frames, {layout.WIDTH}] float32, not {list(frames.shape)} {frames.dtype}"
        )
    if not np.isfinite(frames).all():
        raise StageFailed("the frames hold a value that is not finite")
