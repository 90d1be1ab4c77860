"""What is kept of a voice and of a consent."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
import numpy as np

from omnistage_gateway.audio.recording import Recording

VoiceType = Literal["audio_sample", "speaker_embedding", "prompt"]


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of records.

    Attributes:
        name: as its owner calls it.
        created_at: unix time in seconds.
        object: name of its content in the object store; empty for none.
        complete: whether the content is there. One that is not is neither shown nor used.
    """

    id: str
    name: str
    created_at: int
    object: str = ""
    complete: bool = True


class StoredVoice(Kept, frozen=True, kw_only=True, omit_defaults=True):
    """A voice.

    Attributes:
        type: what it was made from.
        consent: id of the consent, or what the client said of it.
        text: what the recording says; empty if nobody said.
        description: for people.
        prompt: of a voice that is described: the description.
        media_type, file_bytes, duration_s: of the recording.
    """

    type: VoiceType
    consent: str = ""
    text: str = ""
    description: str = ""
    prompt: str = ""
    media_type: str = ""
    file_bytes: int = 0
    duration_s: float = 0.0


class Consent(Kept, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody's consent, recorded.

    Attributes:
        language: BCP-47 tag.
    """

    language: str


class StoredSound(msgspec.Struct, frozen=True, kw_only=True, tag="sound"):
    """A recording, decoded: [n] int16 little-endian, mono."""

    samples: bytes
    sample_rate_hz: int


class StoredEmbedding(msgspec.Struct, frozen=True, kw_only=True, tag="embedding"):
    """A speaker embedding: [width] float32 little-endian."""

    values: bytes


Content = StoredSound | StoredEmbedding

R = TypeVar("R", bound=Kept)


def sound_of(recording: Recording) -> StoredSound:
    """A recording as it is kept."""
    return StoredSound(samples=recording.samples.astype("<i2").tobytes(), sample_rate_hz=recording.sample_rate_hz)


def recording_of(sound: StoredSound) -> Recording:
    """A recording as it was kept."""
    return Recording(np.frombuffer(sound.samples, "<i2").astype(np.int16), sound.sample_rate_hz)


def decode_content(data: bytes) -> Content:
    """What `msgspec.msgpack.encode` made of a content."""
    return msgspec.msgpack.decode(data, type=Content)
