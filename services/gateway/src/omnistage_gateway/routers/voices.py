"""GET /v1/audio/voices: who can speak."""

from __future__ import annotations

from fastapi import APIRouter, Request

from omnistage.errors import InvalidRequest
from omnistage_gateway.context import gateway_of
from omnistage_gateway.openapi import ERRORS
from omnistage_gateway.schemas.models import VoiceCard, VoiceList
from omnistage_gateway.served import find_model

router = APIRouter(tags=["audio"], responses=ERRORS)


@router.get("/v1/audio/voices")
async def list_voices(request: Request, model: str | None = None) -> VoiceList:
    """Voices of the models that answer now, in the order of the models file; of one model, if it is named."""
    unknown = next((name for name in request.query_params if name != "model"), None)
    if unknown is not None:
        raise InvalidRequest(f"Unknown parameter: '{unknown[:100]}'.", code="unknown_parameter", param=unknown[:100])
    gateway = gateway_of(request)
    only = None if model is None else find_model(gateway.models, model).key
    return VoiceList(
        data=[
            VoiceCard(id=name, name=name, model=key, speaks_as=own, default=name == spec.default_voice)
            for key, spec in gateway.dispatcher.offered().items()
            if only in (None, key)
            for name, own in spec.voices.items()
        ]
    )
