"""From a chat request to a checked job: what depends on who lives now, and on what the client has brought along."""

from __future__ import annotations

import secrets
from functools import partial

from omnistage_gateway.chat_voice import chat_voice
from omnistage_gateway.context import Gateway
from omnistage_gateway.conversation import conversation
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.schemas.chat import ChatRequest
from omnistage_gateway.served import Served, makes_audio, talker_engine
from omnistage_gateway.speech_request import stored_voice
from omnistage_gateway.translate import SEED_BITS, ChatJob, chat_job


async def checked_chat(
    gateway: Gateway, request: ChatRequest, served: Served, *, tenant: str, deadline_s: float | None, retry_key: str
) -> ChatJob:
    """Check a chat request against its model; see `chat_job`.

    Raises:
        InvalidRequest: names the field.
    """
    messages = await conversation(request.messages, gateway.transcripts)
    asked = None if request.audio is None else request.audio.voice
    view = gateway.dispatcher.engine(talker_engine(served.spec)) if makes_audio(served.spec) else EngineView()
    stored = await stored_voice(gateway, tenant, served, view, asked)
    return chat_job(
        request,
        served,
        messages,
        partial(chat_voice, served, view, asked, stored),
        seed=secrets.randbits(SEED_BITS),
        tenant=tenant,
        deadline_s=deadline_s,
        retry_key=retry_key,
    )
