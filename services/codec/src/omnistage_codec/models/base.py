"""What a codec family is to the engine: frames in, samples out, the state in between held by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

FrameArray = NDArray[Any]
"""[frames, width]: acoustic features (float32) or codec tokens (integers), as `WaveFacts` says."""

Samples = NDArray[np.float32]
"""[samples] mono, nominally within -1 to 1."""

StateT = TypeVar("StateT")


@dataclass(frozen=True, kw_only=True)
class WaveFacts:
    """What is fixed for a loaded model.

    Attributes:
        family: name of the family.
        layout: name of the frame layout that it reads; the talker's must be the same.
        frame_width: columns of a frame.
        frame_dtype: numpy's name of the frames' element type.
        frame_rate_hz: frames per second of sound.
        sample_rate_hz: samples per second.
        samples_per_frame: every segment of n frames gives exactly n times this many samples.
        lookahead_frames: how many frames the samples lag behind the frames until a segment ends.
    """

    family: str
    layout: str
    frame_width: int
    frame_dtype: str
    frame_rate_hz: float
    sample_rate_hz: int
    samples_per_frame: int
    lookahead_frames: int


class WaveModel(Protocol[StateT]):
    """A family of waveform decoders.

    The samples of a segment are a function of its number, its frames, the seed and the voice alone: how the frames
    were cut into chunks, what was decoded before and what is decoded beside it change no bit. So any segment can be
    decoded again, by any instance.
    """

    @property
    def facts(self) -> WaveFacts:
        """What is fixed for this model."""
        ...

    def new_state(self, *, seed: int, voice: str) -> StateT:
        """The state of a request that has not begun.

        Raises:
            InvalidRequest: there is no such voice.
        """
        ...

    def decode(
        self, state: StateT, frames: FrameArray, *, segment: int, segment_frame: int, segment_end: bool
    ) -> Samples:
        """The samples that these frames make final; blocking. Called for one state at a time, for many in parallel.

        Args:
            state: the request's state, changed in place; of no more use after an error.
            frames: the next frames [n, width] of the segment, n >= 0.
            segment: number of the segment; a new number starts the segment's state anew.
            segment_frame: index within the segment of the first of these frames.
            segment_end: whether these are the segment's last frames.

        Returns:
            New memory that nothing else refers to.

        Raises:
            StageFailed: the frames do not continue what the state holds, or have another shape or type.
        """
        ...
