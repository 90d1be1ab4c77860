"""POST /v1/chat/completions: a conversation in, text and speech out."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from omnistage_gateway.answer import Answer
from omnistage_gateway.body import read_body
from omnistage_gateway.chat_answer import complete
from omnistage_gateway.chat_request import checked_chat
from omnistage_gateway.context import gateway_of
from omnistage_gateway.deadline import asked_deadline_s
from omnistage_gateway.openapi import json_operation
from omnistage_gateway.returning import retry_key
from omnistage_gateway.schemas.chat import ChatRequest
from omnistage_gateway.served import find_model

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions", summary="Create chat completion", **json_operation(ChatRequest, "application/json")
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, with text or with text and speech, whole or as a stream of events."""
    gateway = gateway_of(request)
    body = await read_body(request, ChatRequest, gateway.limits.json_depth)
    served = find_model(gateway.models, body.model)
    request.state.model = served.key
    job = await checked_chat(
        gateway,
        body,
        served,
        tenant=request.state.tenant,
        deadline_s=asked_deadline_s(request.headers),
        retry_key=await retry_key(request),
    )
    return Answer(partial(complete, gateway, job, request.state.request_id))
