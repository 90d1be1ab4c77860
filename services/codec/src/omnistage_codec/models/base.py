"""What a codec family is to the engine: frames in, samples out, the state in between held by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from omnistage.errors import OmnistageError

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
        samples_per_frame: every segment of n frames gives exactly n times this many samples, less `lag_samples`.
        lookahead_frames: how many frames the samples lag behind the frames until a segment ends.
        lag_samples: by how much the samples lag behind the frames for good, since what the last frame leaves open is
            never made; less than a frame.
    """

    family: str
    layout: str
    frame_width: int
    frame_dtype: str
    frame_rate_hz: float
    sample_rate_hz: int
    samples_per_frame: int
    lookahead_frames: int
    lag_samples: int = 0


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

    def new_state(self, *, seed: int, voice: str, context: FrameArray | None = None) -> StateT:
        """The state of a request that has not begun.

        Args:
            seed: key of the noise.
            voice: the voice that made the frames.
            context: [n, width] frames that sounded before each segment's first one; none of them is heard.

        Raises:
            InvalidRequest: there is no such voice.
            StageFailed: the family has no use for context, or it has another shape or type.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Step(Generic[StateT]):
    """What one request is to decode next; fields as the arguments of `WaveModel.decode`.

    Attributes:
        silent: of how many of the first frames nobody needs the samples; zeros will do.
    """

    state: StateT
    frames: FrameArray
    segment: int
    segment_frame: int
    segment_end: bool
    silent: int = 0


@runtime_checkable
class BatchWaveModel(WaveModel[StateT], Protocol[StateT]):
    """A family that decodes several requests in one pass.

    Its samples depend on chunks and batches by no more than rounding; with the family's batch-invariant setting by no
    bit.
    """

    def decode_batch(self, steps: Sequence[Step[StateT]]) -> list[Samples | OmnistageError]:
        """As `decode` for each of the steps, whose states are distinct; blocking.

        Returns:
            One entry a step: its samples, or why it alone failed.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """A recording as a talker takes it.

    Attributes:
        codes: [frames, groups] int32.
        embedding: [width] float32, the speaker embedding; None from families that have none.
    """

    codes: NDArray[np.int32]
    embedding: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class ReferenceFacts:
    """What is fixed for a loaded encoder of recordings.

    Attributes:
        sample_rate_hz: rate of the clips that it takes.
        frame_rate_hz: frames per second of its codes.
        min_samples: the shortest clip.
        fingerprint: names the weights: equal ones give equal codes.
    """

    sample_rate_hz: int
    frame_rate_hz: float
    min_samples: int
    fingerprint: str


class ReferenceModel(Protocol):
    """A family's encoder: recordings to codes and speaker embeddings."""

    @property
    def facts(self) -> ReferenceFacts:
        """What is fixed for this model."""
        ...

    def encode(self, clips: Sequence[Samples]) -> list[Reference]:
        """What the clips are to a talker, each as if it came alone; blocking. New memory.

        Raises:
            StageFailed: they cannot be encoded together; perhaps one by one.
        """
        ...
