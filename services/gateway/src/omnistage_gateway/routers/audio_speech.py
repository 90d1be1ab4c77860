"""POST /v1/audio/speech and /v1/audio/speech/batch: text in, speech out."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from omnistage_gateway.answer import Answer
from omnistage_gateway.body import read_body
from omnistage_gateway.context import gateway_of
from omnistage_gateway.deadline import asked_deadline_s
from omnistage_gateway.openapi import json_operation
from omnistage_gateway.returning import retry_key
from omnistage_gateway.schemas.speech import SpeechBatch, SpeechRequest
from omnistage_gateway.served import find_model
from omnistage_gateway.speech_answer import speak
from omnistage_gateway.speech_batch import BatchContext, check_batch, speak_all
from omnistage_gateway.speech_request import checked_job

router = APIRouter(tags=["audio"])


@router.post("/v1/audio/speech", summary="Create speech", **json_operation(SpeechRequest, "audio/*"))
async def create_speech(request: Request) -> Response:
    """Speak a text. Audio is sent as it is made, without a length, unless `stream` is false."""
    gateway = gateway_of(request)
    body = await read_body(request, SpeechRequest, gateway.limits.json_depth)
    served = find_model(gateway.models, body.model)
    request.state.model = served.key
    job = await checked_job(
        gateway,
        body,
        served,
        tenant=request.state.tenant,
        deadline_s=asked_deadline_s(request.headers),
        retry_key=await retry_key(request),
    )
    return Answer(partial(speak, gateway, job, request.state.request_id))


@router.post(
    "/v1/audio/speech/batch", summary="Create speech of many texts", **json_operation(SpeechBatch, "application/json")
)
async def create_speech_batch(request: Request) -> Response:
    """Speak up to 32 texts; each has its own result, or its own error. Answers when all are done."""
    gateway = gateway_of(request)
    batch = await read_body(request, SpeechBatch, gateway.limits.json_depth)
    check_batch(batch)
    context = BatchContext(
        request_id=request.state.request_id,
        tenant=request.state.tenant,
        deadline_s=asked_deadline_s(request.headers),
        retry_key=await retry_key(request),
    )
    return Answer(partial(speak_all, gateway, batch, context))
