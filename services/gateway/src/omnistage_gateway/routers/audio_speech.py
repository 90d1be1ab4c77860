"""POST /v1/audio/speech: text in, speech out."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request, Response

from omnistage_gateway.answer import Answer
from omnistage_gateway.body import read_body
from omnistage_gateway.context import Gateway, gateway_of
from omnistage_gateway.deadline import asked_deadline_s
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.openapi import json_operation
from omnistage_gateway.returning import retry_key
from omnistage_gateway.schemas.base import Voice, voice_name
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import Served, find_model, find_voice, makes_audio, talker_engine, voices_of
from omnistage_gateway.speech_answer import speak
from omnistage_gateway.translate import SEED_BITS, speech_job
from omnistage_gateway.voices import StoredVoice

router = APIRouter(tags=["audio"])


@router.post("/v1/audio/speech", summary="Create speech", **json_operation(SpeechRequest, "audio/*"))
async def create_speech(request: Request) -> Response:
    """Speak a text. Audio is sent as it is made, without a length, unless `stream` is false."""
    gateway = gateway_of(request)
    body = await read_body(request, SpeechRequest, gateway.limits.json_depth)
    served = find_model(gateway.models, body.model)
    request.state.model = served.key
    view = gateway.dispatcher.engine(talker_engine(served.spec)) if makes_audio(served.spec) else EngineView()
    job = speech_job(
        body,
        served,
        view,
        await _stored(gateway, request.state.tenant, served, view, body.voice),
        seed=secrets.randbits(SEED_BITS),
        tenant=request.state.tenant,
        deadline_s=asked_deadline_s(request.headers),
        retry_key=await retry_key(request),
    )
    return Answer(partial(speak, gateway, job, request.state.request_id))


async def _stored(
    gateway: Gateway, tenant: str, served: Served, view: EngineView, voice: Voice | None
) -> StoredVoice | None:
    """The tenant's voice that a request names, unless the model has one of that name."""
    if voice is None or find_voice(voices_of(served.spec, view), voice_name(voice)) is not None:
        return None
    return await gateway.voices.find_voice(tenant, voice_name(voice))
