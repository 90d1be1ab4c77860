"""GET /v1/models and GET /v1/audio/voices."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """A served model in OpenAI's shape; the fields after `owned_by` are ours.

    Attributes:
        created: when this gateway started, in unix time.
        aliases: other names under which it answers.
        modalities: what it gives: "text", "audio" or both.
        voices: names that it speaks with.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    aliases: list[str]
    modalities: list[str]
    voices: list[str]


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class VoiceCard(BaseModel):
    """A voice under one of the names that clients may use.

    Attributes:
        id, name: what to send as `voice`.
        type: built into the model, not made by a client.
        model: the model that speaks with it; a voice of two models is listed twice.
        speaks_as: the model's own voice behind the name; names of one voice share it.
        default: whether the model uses it when none is asked for.
    """

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    type: Literal["built_in"] = "built_in"
    model: str
    speaks_as: str
    default: bool


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceCard]
    has_more: bool = False
