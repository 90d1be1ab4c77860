"""The API's own documentation for endpoints that read their bodies themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from omnistage_gateway.schemas.chat import ChatRequest
from omnistage_gateway.schemas.errors import ErrorAnswer
from omnistage_gateway.schemas.speech import SpeechBatch, SpeechRequest
from omnistage_gateway.schemas.voices import ConsentRequest, ConsentUpdate, VoiceRequest

_READ = (SpeechRequest, SpeechBatch, ChatRequest, VoiceRequest, ConsentRequest, ConsentUpdate)
"""Bodies that FastAPI does not see."""

_REF = "#/components/schemas/{model}"

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request was refused"},
    "5XX": {"model": ErrorAnswer, "description": "The request failed"},
}


def json_operation(kind: type[BaseModel], media_type: str) -> dict[str, Any]:
    """Arguments of a route whose body is a `kind` and whose answer has that media type or is a stream of events."""
    return {
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": _REF.format(model=kind.__name__)}}},
            }
        },
        "responses": {
            200: {"description": "The answer", "content": {media_type: {}, "text/event-stream": {}}},
            **ERRORS,
        },
    }


def form_operation(kind: type[BaseModel], file: str) -> dict[str, Any]:
    """Arguments of a route whose body is a form with the fields of a `kind` and a file."""
    fields = {"allOf": [{"$ref": _REF.format(model=kind.__name__)}]}
    form = {**fields, "properties": {file: {"type": "string", "format": "binary"}}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the shapes of the bodies that FastAPI does not see."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, shapes = models_json_schema([(kind, "validation") for kind in _READ], ref_template=_REF)
        schema.setdefault("components", {}).setdefault("schemas", {}).update(shapes["$defs"])
        app.openapi_schema = schema
    return app.openapi_schema
