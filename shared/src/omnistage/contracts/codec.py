"""What the codec receives."""

from __future__ import annotations

from omnistage.contracts.common import Payload, Record, Work
from omnistage.contracts.output import FinishReason


class DecodeFrames(Work, frozen=True, kw_only=True, omit_defaults=True, tag="decode_frames"):
    """Turn the frames that come over the edge into this node into a waveform.

    Attributes:
        seed: key of the counter-based noise.
        voice: the voice that made the frames.
        context: [frames, width] what sounded before the first frame, e.g. the recording that a voice is cloned from:
            the decoder is warmed with it, and none of it is heard.
        first_frames: how many frames the first samples are made of, if they are to be had one by one; 0 leaves it to
            the engine.
    """

    seed: int = 0
    voice: str = ""
    context: Payload | None = None
    first_frames: int = 0


class FrameChunk(Record, frozen=True, kw_only=True, omit_defaults=True, tag="frame_chunk"):
    """Consecutive acoustic frames (or codec tokens) of one segment.

    A segment is what the decoder treats as one piece, e.g. a clause: its state starts anew with each.

    Attributes:
        payload: [frames, width]; what the columns mean is agreed between talker and codec family. Codec tokens are
            int32, a column for each group, group 0 first.
        frames: number of frames in the payload.
        segment: 0-based number of the segment.
        segment_frame: index within the segment of the payload's first frame.
        segment_end: whether the segment's last frame is in the payload.
        text: what the segment says, on its first chunk (for alignment), else empty.
        finish_reason: on the last chunk of all, from engines that know it: "stop" or "length".
    """

    payload: Payload
    frames: int
    segment: int = 0
    segment_frame: int = 0
    segment_end: bool = False
    text: str = ""
    finish_reason: FinishReason | None = None


class EncodeReference(Work, frozen=True, kw_only=True, omit_defaults=True, tag="encode_reference"):
    """Turn a recording into what a voice is cloned from.

    Attributes:
        payload: [samples] int16, or float32 in [-1, 1]; mono.
        sample_rate_hz: samples per second; the codec resamples.
    """

    payload: Payload
    sample_rate_hz: int


CodecWork = DecodeFrames | EncodeReference
