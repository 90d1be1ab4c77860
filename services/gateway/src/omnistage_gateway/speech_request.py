"""From a speech request to a checked job: what depends on who lives now, and on what the client has brought along."""

from __future__ import annotations

import secrets

from omnistage_gateway.context import Gateway
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.schemas.base import Voice, voice_name
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import Served, find_voice, makes_audio, talker_engine, voices_of
from omnistage_gateway.translate import SEED_BITS, SpeechJob, speech_job
from omnistage_gateway.voices import StoredVoice


async def checked_job(
    gateway: Gateway, request: SpeechRequest, served: Served, *, tenant: str, deadline_s: float | None, retry_key: str
) -> SpeechJob:
    """Check a speech request against its model; see `speech_job`.

    Raises:
        InvalidRequest: names the field.
    """
    view = gateway.dispatcher.engine(talker_engine(served.spec)) if makes_audio(served.spec) else EngineView()
    return speech_job(
        request,
        served,
        view,
        await stored_voice(gateway, tenant, served, view, request.voice),
        seed=secrets.randbits(SEED_BITS),
        tenant=tenant,
        deadline_s=deadline_s,
        retry_key=retry_key,
    )


async def stored_voice(
    gateway: Gateway, tenant: str, served: Served, view: EngineView, voice: Voice | None
) -> StoredVoice | None:
    """The tenant's voice that a request names, unless the model has one of that name."""
    if voice is None or find_voice(voices_of(served.spec, view), voice_name(voice)) is not None:
        return None
    return await gateway.voices.find_voice(tenant, voice_name(voice))
