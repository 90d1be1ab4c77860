"""What all request shapes share."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from omnistage_gateway.problems import UNSUPPORTED

T = TypeVar("T")


class Shape(BaseModel):
    """Unknown fields are refused; types are JSON's own, a string is never taken for a number.

    A null means the same as leaving an optional field out, as in OpenAI's API.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields
        return {
            key: entry
            for key, entry in value.items()
            if entry is not None or key not in fields or fields[key].is_required()
        }


class VoiceById(Shape):
    """The object form of a voice."""

    id: str


Voice = str | VoiceById


def voice_name(voice: Voice) -> str:
    """The name in either form."""
    return voice if isinstance(voice, str) else voice.id


def unsupported(reason: str) -> PydanticCustomError:
    """A fault of a value that OpenAI's API knows and this server cannot honour."""
    return PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": reason})
