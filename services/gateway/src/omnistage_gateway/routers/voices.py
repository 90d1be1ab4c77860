"""/v1/audio/voices: who can speak, and the voices that clients bring along."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request

from omnistage.config import ModelSpec
from omnistage.errors import InvalidRequest
from omnistage_gateway.body import read_body
from omnistage_gateway.context import Gateway, gateway_of
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.form_shapes import shape_of
from omnistage_gateway.forms import Upload, read_form
from omnistage_gateway.openapi import ERRORS, form_operation
from omnistage_gateway.query import only_known
from omnistage_gateway.schemas.voices import OwnVoiceCard, VoiceCard, VoiceDeleted, VoiceList, VoiceRequest
from omnistage_gateway.served import Served, find_model, makes_audio, talker_engine, voices_of
from omnistage_gateway.speech_extras import can_speak
from omnistage_gateway.voice_requests import AUDIO_SAMPLE, requested_voice
from omnistage_gateway.voices import StoredVoice
from omnistage_gateway.voices.library import no_voice

router = APIRouter(tags=["audio"], responses=ERRORS)


@router.get("/v1/audio/voices")
async def list_voices(request: Request, model: str | None = None) -> VoiceList:
    """Voices of the models that answer now, in the order of the models file, then one's own; of one model, if named."""
    only_known(request, "model")
    gateway = gateway_of(request)
    only = None if model is None else find_model(gateway.models, model).key
    offered = {key: spec for key, spec in gateway.dispatcher.offered().items() if only in (None, key)}
    built_in = [
        VoiceCard(id=name, name=name, model=key, speaks_as=own, default=name == spec.default_voice)
        for key, spec in offered.items()
        for name, own in voices_of(spec, _view(gateway, spec)).items()
    ]
    own = [_card(gateway, voice, offered) for voice in await gateway.voices.voices(request.state.tenant)]
    return VoiceList(data=[*built_in, *(card for card in own if card.models or only is None)])


@router.post("/v1/audio/voices", summary="Create a voice", **form_operation(VoiceRequest, AUDIO_SAMPLE))
async def create_voice(request: Request) -> OwnVoiceCard:
    """Keep a voice: a recording of 1 to 30 s (a form), a speaker embedding or a description (a form, or JSON)."""
    only_known(request)
    gateway = gateway_of(request)
    asked, upload = await _asked(request, gateway)
    voice, content = await requested_voice(asked, upload, gateway.cloning)
    kept = await gateway.voices.add_voice(request.state.tenant, voice, content, _built_in(gateway))
    return _card(gateway, kept, gateway.dispatcher.offered())


@router.get("/v1/audio/voices/{voice}")
async def retrieve_voice(request: Request, voice: str) -> OwnVoiceCard:
    """A voice of one's own, by id or name."""
    only_known(request)
    gateway = gateway_of(request)
    found = await gateway.voices.find_voice(request.state.tenant, voice)
    if found is None:
        raise no_voice(voice)
    return _card(gateway, found, gateway.dispatcher.offered())


@router.delete("/v1/audio/voices/{voice}")
async def delete_voice(request: Request, voice: str) -> VoiceDeleted:
    """Forget a voice of one's own, by id or name, with all that it was made from."""
    only_known(request)
    gateway = gateway_of(request)
    if voice.casefold() in _built_in(gateway):
        raise InvalidRequest(
            f"The voice {voice[:100]!r} is built in; it cannot be deleted.", code="built_in_voice", param="voice"
        )
    removed = await gateway.voices.remove_voice(request.state.tenant, voice)
    return VoiceDeleted(id=removed.id)


async def _asked(request: Request, gateway: Gateway) -> tuple[VoiceRequest, Upload | None]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        return await read_body(request, VoiceRequest, gateway.limits.json_depth), None
    form = await read_form(request, gateway.limits)
    return shape_of(form, VoiceRequest, AUDIO_SAMPLE, ("speaker_embedding",))


def _view(gateway: Gateway, spec: ModelSpec) -> EngineView:
    return gateway.dispatcher.engine(talker_engine(spec)) if makes_audio(spec) else EngineView()


def _built_in(gateway: Gateway) -> frozenset[str]:
    """Case-folded names of all models' own voices, ready or not, and of what their engines call them."""
    found = [voices_of(spec, _view(gateway, spec)) for spec in gateway.models.models.values()]
    return frozenset(name.casefold() for voices in found for pair in voices.items() for name in pair)


def _card(gateway: Gateway, voice: StoredVoice, offered: Mapping[str, ModelSpec]) -> OwnVoiceCard:
    return OwnVoiceCard(
        id=voice.id,
        created_at=voice.created_at,
        name=voice.name,
        type=voice.type,
        prompt=voice.prompt or None,
        models=[
            key for key, spec in offered.items() if can_speak(voice, Served(key, spec), _view(gateway, spec).speech)
        ],
        consent=voice.consent or None,
        ref_text=voice.text or None,
        description=voice.description or None,
        mime_type=voice.media_type or None,
        file_size=voice.file_bytes or None,
        duration_s=voice.duration_s or None,
    )
