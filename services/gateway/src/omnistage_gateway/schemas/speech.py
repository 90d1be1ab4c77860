"""POST /v1/audio/speech."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

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

    The others are extras too, each for models that honour it (GET /v1/models says which do):

    Attributes:
        task_type: what makes the voice: a name, a description (`instructions`) or a recording.
        language: BCP-47 tag or the model's own name of it; "Auto" or nothing lets the model find out.
        ref_audio: a recording of the voice, 1 to 30 s: https: or data: URL, or base64.
        ref_text: what the recording says.
        x_vector_only_mode: take only the timbre of the recording.
        speaker_embedding: the timbre itself, instead of a recording.
        max_new_tokens: ceiling of frames.
        initial_codec_chunk_frames: frames that the first sound is made of.
        non_streaming_mode: read the whole text before the first frame.
        temperature, top_k, top_p, repetition_penalty: sampling; a temperature or top_k of 0 is greedy, or off.
        subtalker_temperature, subtalker_top_k, subtalker_top_p: the same for all codes of a frame but the first.
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
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    language: str | None = Field(None, min_length=1, max_length=64)
    ref_audio: str | Annotated[list[str], Field(min_length=1, max_length=1)] | None = None
    ref_text: str | None = Field(None, max_length=4096)
    x_vector_only_mode: bool | None = None
    speaker_embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None
    max_new_tokens: int | None = Field(None, ge=1, le=8192)
    initial_codec_chunk_frames: int | None = Field(None, ge=0, le=1024)
    non_streaming_mode: bool | None = None
    temperature: float | None = Field(None, ge=0, le=10)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    subtalker_temperature: float | None = Field(None, ge=0, le=10)
    subtalker_top_k: int | None = Field(None, ge=0, lt=2**31)
    subtalker_top_p: float | None = Field(None, gt=0, le=1)

    @property
    def recording(self) -> str | None:
        """`ref_audio` in its simple form."""
        return self.ref_audio[0] if isinstance(self.ref_audio, list) else self.ref_audio


class SpeechBatch(Shape):
    """Texts to be spoken.

    Fields of a speech request beside `items` hold for every item that does not say otherwise.

    Attributes:
        items: speech requests; `stream` and `stream_format` have no place in them.
    """

    model_config = ConfigDict(extra="allow")

    items: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=32)]
