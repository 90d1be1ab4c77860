"""POST /v1/audio/speech."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from omnistage_gateway.schemas.base import Shape, Voice

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
SampleRate = Literal[8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000]


class SpeechRequest(Shape):
    """A text to be spoken.

    Attributes:
        model, input: as in OpenAI's API; how long `input` may be depends on the model.
        voice: a name, or an object with `id`; may be left out where the model has a default voice.
        instructions: only for models that take them (`accepts` in the models file); an empty text is no instruction.
        response_format: container and codec of the answer.
        speed: duration of the answer is that of speed 1 divided by it.
        stream_format: "audio" for the bytes themselves, "sse" for events with base64 pieces of the same bytes.
        stream: local extra. False: one piece with Content-Length and true sizes in its header.
        seed: local extra. Equal requests with equal seeds give equal bytes; without one it is random.
        sample_rate: local extra, in Hz. Opus carries 11025, 22050, 32000 and 44100 at the next of its own rates; mp3
            and aac are made from 22050 on.
    """

    model: str
    input: str
    voice: Voice | None = None
    instructions: str | None = None
    response_format: ResponseFormat = "mp3"
    speed: float = Field(1.0, ge=0.25, le=4.0)
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool = True
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    sample_rate: SampleRate | None = None
