"""POST /v1/audio/speech: text in, speech out."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request, Response

from omnistage_gateway.answer import Answer
from omnistage_gateway.body import read_body
from omnistage_gateway.context import gateway_of
from omnistage_gateway.deadline import asked_deadline_s
from omnistage_gateway.openapi import json_operation
from omnistage_gateway.returning import retry_key
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import find_model, makes_audio, talker_engine
from omnistage_gateway.speech_answer import speak
from omnistage_gateway.translate import SEED_BITS, speech_job

router = APIRouter(tags=["audio"])


@router.post("/v1/audio/speech", summary="Create speech", **json_operation(SpeechRequest, "audio/*"))
async def create_speech(request: Request) -> Response:
    """Speak a text. Audio is sent as it is made, without a length, unless `stream` is false."""
    gateway = gateway_of(request)
    body = await read_body(request, SpeechRequest, gateway.limits.json_depth)
    served = find_model(gateway.models, body.model)
    request.state.model = served.key
    facts = gateway.dispatcher.engine(talker_engine(served.spec)).facts if makes_audio(served.spec) else {}
    job = speech_job(
        body,
        served,
        facts,
        seed=secrets.randbits(SEED_BITS),
        tenant=request.state.tenant,
        deadline_s=asked_deadline_s(request.headers),
        retry_key=retry_key(request, body),
    )
    return Answer(partial(speak, gateway, job, request.state.request_id))
