"""GET /v1/models: what is served now."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request

from omnistage.errors import Unavailable
from omnistage_gateway.context import Gateway, gateway_of
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.openapi import ERRORS
from omnistage_gateway.schemas.models import ModelCard, ModelList
from omnistage_gateway.served import Served, find_model, makes_audio, modalities, talker_engine, voices_of
from omnistage_gateway.speech_extras import honoured

router = APIRouter(tags=["models"], responses=ERRORS)


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """Models that answer now; one that is still loading is not among them."""
    gateway = gateway_of(request)
    return ModelList(data=[_card(gateway, Served(key, spec)) for key, spec in gateway.dispatcher.offered().items()])


@router.get("/v1/models/{model:path}")
async def retrieve_model(request: Request, model: str) -> ModelCard:
    """A model by its key or an alias; the answer names the model really meant."""
    if not model:
        raise HTTPException(404)
    gateway = gateway_of(request)
    served = find_model(gateway.models, model)
    if served.key not in gateway.dispatcher.offered():
        raise Unavailable(f"The model '{served.key}' is not ready.", code="model_not_ready", param="model")
    return _card(gateway, served)


def _card(gateway: Gateway, served: Served) -> ModelCard:
    spec = served.spec
    view = gateway.dispatcher.engine(talker_engine(spec)) if makes_audio(spec) else EngineView()
    return ModelCard(
        id=served.key,
        created=gateway.created,
        owned_by=spec.owned_by,
        description=spec.description,
        aliases=list(spec.aliases),
        modalities=modalities(spec),
        voices=list(voices_of(spec, view)),
        accepts=list(honoured(served, view.speech)) if makes_audio(spec) else [],
    )
