"""How it is: alive, ready, in numbers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from omnistage.observability import CONTENT_TYPE
from omnistage_gateway.answer import to_json
from omnistage_gateway.context import gateway_of

router = APIRouter(tags=["operations"])


@router.get("/")
async def about(request: Request) -> dict[str, Any]:
    """What this is, and where to read on."""
    return {
        "name": "omnistage",
        "version": gateway_of(request).version,
        "openapi": "/openapi.json",
        "models": "/v1/models",
    }


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """The process lives."""
    return {"status": "ok", "version": gateway_of(request).version}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"description": "Some model is not ready; `detail` says why"}})
async def ready(request: Request) -> Response:
    """200 when every model is ready; else 503 and why."""
    good, detail = gateway_of(request).dispatcher.ready()
    body = to_json({"ready": good, "detail": detail})
    return Response(body, 200 if good else 503, media_type="application/json")


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Everything measured, in Prometheus' text format."""
    return Response(gateway_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})
