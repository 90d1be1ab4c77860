"""GET /v1/models."""

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
        accepts: fields of speech requests beyond OpenAI's that it honours.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    aliases: list[str]
    modalities: list[str]
    voices: list[str]
    accepts: list[str]


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
