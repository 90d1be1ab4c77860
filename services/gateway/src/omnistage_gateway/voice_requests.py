"""From a request for a voice to what is kept of it."""

from __future__ import annotations

import msgspec
import numpy as np

from omnistage.errors import InvalidRequest
from omnistage_gateway.cloning import Cloning
from omnistage_gateway.forms import Upload
from omnistage_gateway.problems import UNSUPPORTED, missing
from omnistage_gateway.schemas.voices import VoiceRequest
from omnistage_gateway.voices import StoredEmbedding, StoredSound, StoredVoice
from omnistage_gateway.voices.records import VoiceType, sound_of

AUDIO_SAMPLE = "audio_sample"


async def requested_voice(
    asked: VoiceRequest, upload: Upload | None, cloning: Cloning
) -> tuple[StoredVoice, StoredSound | StoredEmbedding | None]:
    """The voice and its content, decoded.

    Raises:
        InvalidRequest: fields are missing or do not go together, or the recording cannot be used; names the field.
    """
    kind = _kind(asked, upload)
    _check(asked, kind)
    voice = StoredVoice(
        id="",
        name=asked.name,
        created_at=0,
        type=kind,
        consent=asked.consent or "",
        text=(asked.ref_text or "").strip(),
        description=asked.description or asked.speaker_description or "",
        prompt=(asked.prompt or "").strip(),
    )
    if kind == "prompt":
        return voice, None
    if asked.speaker_embedding is not None:
        return voice, StoredEmbedding(values=np.array(asked.speaker_embedding, "<f4").tobytes())
    assert upload is not None
    recording = await cloning.decode(upload.data, AUDIO_SAMPLE)
    described = msgspec.structs.replace(
        voice,
        media_type=upload.content_type[:100],
        file_bytes=len(upload.data),
        duration_s=round(recording.duration_s, 3),
    )
    return described, sound_of(recording)


def _kind(asked: VoiceRequest, upload: Upload | None) -> VoiceType:
    """What the voice is made from, which must be one thing, and the one that `type` says if it says any."""
    given: dict[VoiceType, bool] = {
        "audio_sample": upload is not None,
        "speaker_embedding": asked.speaker_embedding is not None,
        "prompt": asked.prompt is not None,
    }
    found = [kind for kind, there in given.items() if there]
    wanted = asked.type or (found[0] if found else "audio_sample")
    if not given[wanted]:
        raise missing(wanted)
    other = next((kind for kind in found if kind != wanted), None)
    if other is not None:
        raise InvalidRequest(f"Invalid value for '{other}': the voice is made from its {wanted}.", param=other)
    return wanted


def _check(asked: VoiceRequest, kind: VoiceType) -> None:
    if asked.script_hint is not None:
        raise InvalidRequest(
            "Invalid value for 'script_hint': it is not supported.", code=UNSUPPORTED, param="script_hint"
        )
    if asked.description is not None and asked.speaker_description is not None:
        raise InvalidRequest(
            "Invalid value for 'speaker_description': it is another name of description.", param="speaker_description"
        )
    if kind != "audio_sample" and asked.ref_text:
        raise InvalidRequest("Invalid value for 'ref_text': it belongs to a recording.", param="ref_text")
    if kind == "prompt":
        if not (asked.prompt or "").strip():
            raise InvalidRequest("Invalid value for 'prompt': it describes nothing.", param="prompt")
        if asked.consent is not None:
            raise InvalidRequest("Invalid value for 'consent': a described voice is nobody's.", param="consent")
    elif asked.consent is None or not asked.consent.strip():
        raise missing("consent")
