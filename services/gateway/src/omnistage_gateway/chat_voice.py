"""The voice of spoken answers: one of the model's, or one that the client has kept. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from omnistage.contracts import AnyWork, GenerateText, SpeechOptions, SpeechTask, VoiceReference
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.dispatch.interface import Plan
from omnistage_gateway.problems import missing
from omnistage_gateway.schemas.base import Voice
from omnistage_gateway.served import UNNAMED_VOICE, Served, spoken_voice
from omnistage_gateway.speech_extras import VoiceSource, check_can_speak
from omnistage_gateway.voices import StoredVoice

CHAT_VOICE = "audio.voice"
"""The field that names it."""


@dataclass(frozen=True)
class ChatVoice:
    """How answers are spoken.

    Attributes:
        speech: for the talker, without its seed.
        source: the kept voice that it is cloned from; None for a voice of the model's own or a described one.
    """

    speech: SpeechOptions
    source: VoiceSource | None = None


def chat_voice(served: Served, view: EngineView, asked: Voice | None, stored: StoredVoice | None) -> ChatVoice:
    """The voice that a conversation asks for.

    Args:
        view: what the talker's engine announces.
        asked: the name, or None for the model's default.
        stored: the kept voice of that name, if it is none of the model's.

    Raises:
        InvalidRequest: the model has no such voice, cannot speak with it, or needs one and none was named.
    """
    if stored is None:
        if view.speech.tasks in (("base",), ("voice_design",)):
            raise missing(CHAT_VOICE, "this model speaks with voices that were uploaded to /v1/audio/voices")
        return ChatVoice(SpeechOptions(voice=spoken_voice(served, view, asked, CHAT_VOICE)))
    check_can_speak(stored, served, view.speech, CHAT_VOICE)
    own = next(iter(view.voices), UNNAMED_VOICE)
    if stored.type == "prompt":
        return ChatVoice(SpeechOptions(voice=own, task="voice_design", instructions=stored.prompt))
    task: SpeechTask | None = "base" if "base" in view.speech.tasks else None
    return ChatVoice(SpeechOptions(voice=own, task=task), VoiceSource(stored=stored, text=stored.text))


def with_cloned(plans: tuple[Plan, ...], reference: VoiceReference) -> tuple[Plan, ...]:
    """The same answers, spoken in a voice that is cloned from the reference."""
    return tuple(replace(plan, build=partial(_cloned, plan.build, reference)) for plan in plans)


def _cloned(
    build: Callable[[str, str, Mapping[str, str]], AnyWork],
    reference: VoiceReference,
    request_id: str,
    node: str,
    route: Mapping[str, str],
) -> GenerateText:
    work = build(request_id, node, route)
    assert isinstance(work, GenerateText)
    assert work.speech is not None, "only what is spoken has a voice"
    speech = msgspec.structs.replace(work.speech, reference=reference)
    return msgspec.structs.replace(work, speech=speech)
