"""/v1/audio/voice_consents: recordings of people who agree that their voice is used."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from omnistage.errors import InvalidRequest
from omnistage_gateway.body import read_body
from omnistage_gateway.context import gateway_of
from omnistage_gateway.form_shapes import needed, shape_of
from omnistage_gateway.forms import read_form
from omnistage_gateway.openapi import ERRORS, form_operation
from omnistage_gateway.query import only_known
from omnistage_gateway.schemas.voices import ConsentCard, ConsentDeleted, ConsentList, ConsentRequest, ConsentUpdate
from omnistage_gateway.voices import Consent

RECORDING = "recording"

router = APIRouter(tags=["audio"], responses=ERRORS)


@router.post("/v1/audio/voice_consents", summary="Keep a consent", **form_operation(ConsentRequest, RECORDING))
async def create_consent(request: Request) -> ConsentCard:
    """Keep the recording of somebody who agrees."""
    only_known(request)
    gateway = gateway_of(request)
    asked, upload = shape_of(await read_form(request, gateway.limits), ConsentRequest, RECORDING)
    data = needed(upload, RECORDING).data
    await gateway.cloning.decode(data, RECORDING)
    return _card(await gateway.voices.add_consent(request.state.tenant, asked.name, asked.language, data))


@router.get("/v1/audio/voice_consents")
async def list_consents(
    request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> ConsentList:
    """One's own, oldest first, in pages."""
    only_known(request, "after", "limit")
    consents = await gateway_of(request).voices.consents(request.state.tenant)
    start = 0
    if after is not None:
        start = next((index + 1 for index, consent in enumerate(consents) if consent.id == after), 0)
        if not start:
            raise InvalidRequest("Invalid value for 'after': there is no such consent.", param="after")
    page = [_card(consent) for consent in consents[start : start + limit]]
    return ConsentList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=start + limit < len(consents),
    )


@router.get("/v1/audio/voice_consents/{consent_id}")
async def retrieve_consent(request: Request, consent_id: str) -> ConsentCard:
    """One of one's own."""
    only_known(request)
    return _card(await gateway_of(request).voices.consent(request.state.tenant, consent_id))


@router.post("/v1/audio/voice_consents/{consent_id}")
async def update_consent(request: Request, consent_id: str) -> ConsentCard:
    """Label it otherwise."""
    only_known(request)
    gateway = gateway_of(request)
    asked = await read_body(request, ConsentUpdate, gateway.limits.json_depth)
    return _card(await gateway.voices.rename_consent(request.state.tenant, consent_id, asked.name))


@router.delete("/v1/audio/voice_consents/{consent_id}")
async def delete_consent(request: Request, consent_id: str) -> ConsentDeleted:
    """Forget it, recording included; voices that were made with it stay."""
    only_known(request)
    await gateway_of(request).voices.remove_consent(request.state.tenant, consent_id)
    return ConsentDeleted(id=consent_id)


def _card(consent: Consent) -> ConsentCard:
    return ConsentCard(id=consent.id, created_at=consent.created_at, name=consent.name, language=consent.language)
