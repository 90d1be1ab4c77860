"""/v1/audio/voices and /v1/audio/voice_consents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from omnistage_gateway.schemas.base import Shape
from omnistage_gateway.voices.names import MAX_NAME_CHARS

ConsentText = Annotated[str, Field(min_length=1, max_length=256)]


class VoiceRequest(Shape):
    """A voice to be kept, but for its recording, which is a file of the form (`audio_sample`).

    Attributes:
        name: how requests will call it.
        type: what it is made from; follows from the other fields.
        consent: id of a consent that was recorded, or how else the speaker has consented.
        ref_text: local extra. What the recording says: the voice is then cloned with its manner, else with its timbre.
        description, speaker_description: local extra. For people.
        speaker_embedding: local extra. The timbre itself, instead of a recording.
        prompt: a description to make the voice from, for models that design voices.
        model: "auto" is all that there is.
        script_hint: not supported.
    """

    name: str
    type: Literal["audio_sample", "speaker_embedding", "prompt"] | None = None
    consent: ConsentText | None = None
    ref_text: str | None = Field(None, max_length=4096)
    description: str | None = Field(None, max_length=1024)
    speaker_description: str | None = Field(None, max_length=1024)
    speaker_embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None
    prompt: str | None = Field(None, min_length=1, max_length=2048)
    model: Literal["auto"] | None = None
    script_hint: str | None = None


class ConsentRequest(Shape):
    """A consent, but for its recording, which is a file of the form (`recording`).

    Attributes:
        language: BCP-47 tag of what is said.
        name: a label.
    """

    name: str
    language: str = Field(max_length=35, pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")


class ConsentUpdate(Shape):
    """Another label for a consent."""

    name: str = Field(max_length=MAX_NAME_CHARS)


class VoiceCard(BaseModel):
    """A voice of a model, under one of the names that clients may use.

    Attributes:
        id, name: what to send as `voice`.
        type: built into the model, not made by a client.
        model: the model that speaks with it; a voice of two models is listed twice.
        speaks_as: the model's own voice behind the name; names of one voice share it.
        default: whether the model uses it when none is asked for.
    """

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    type: Literal["built_in"] = "built_in"
    model: str
    speaks_as: str
    default: bool


class OwnVoiceCard(BaseModel):
    """A voice that the client has brought along, in OpenAI's shape; the fields after `prompt` are ours.

    Attributes:
        models: models that can speak with it now.
        consent, ref_text, description: as they were given.
        mime_type, file_size, duration_s: of the recording, if there is one.
    """

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    created_at: int
    name: str
    type: Literal["audio_sample", "speaker_embedding", "prompt"]
    prompt: str | None = None
    models: list[str]
    consent: str | None = None
    ref_text: str | None = None
    description: str | None = None
    mime_type: str | None = None
    file_size: int | None = None
    duration_s: float | None = None


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceCard | OwnVoiceCard]
    has_more: bool = False


class VoiceDeleted(BaseModel):
    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: bool = True


class ConsentCard(BaseModel):
    """A consent in OpenAI's shape."""

    id: str
    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    created_at: int
    name: str
    language: str


class ConsentList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ConsentCard]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConsentDeleted(BaseModel):
    id: str
    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    deleted: bool = True
