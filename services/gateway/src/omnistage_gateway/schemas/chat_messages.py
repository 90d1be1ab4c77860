"""The turns of a conversation as clients write them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from omnistage_gateway.schemas.base import Shape, unsupported

_OTHER_PARTS = ("image_url", "input_audio", "file", "video_url", "audio_url", "refusal")


def _only_text(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _OTHER_PARTS:
        raise unsupported(f"this model reads text only, not parts of type {kind!r}")
    return part


def _no_calls(calls: Any) -> Any:
    if calls:
        raise unsupported("this model cannot call tools, so no turn can hold calls")
    return calls


def _no_refusal(refusal: Any) -> Any:
    if refusal:
        raise unsupported("refusals of another model cannot be part of the conversation")
    return refusal


class TextPart(Shape):
    type: Literal["text"]
    text: str


Part = Annotated[TextPart, BeforeValidator(_only_text)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Content = str | Annotated[list[Part], Field(min_length=1)]


class AudioOfTurn(Shape):
    """Reference to an earlier answer's audio by its id.

    The other fields are what that answer itself held; SDKs send it back as a whole. Only the id is used.
    """

    id: str
    data: str | None = None
    transcript: str | None = None
    expires_at: int | None = None


class SystemTurn(Shape):
    """`developer` means the same as `system`."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserTurn(Shape):
    role: Literal["user"]
    content: Content
    name: Name | None = None


class AssistantTurn(Shape):
    """Has content or audio. Fields of an answer that say "none" are accepted, so that answers can be sent back."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    audio: AudioOfTurn | None = None
    refusal: Annotated[str | None, BeforeValidator(_no_refusal)] = None
    annotations: Annotated[list[Any] | None, Field(max_length=0)] = None
    tool_calls: Annotated[list[Any] | None, BeforeValidator(_no_calls)] = None
    function_call: Annotated[dict[str, Any] | None, BeforeValidator(_no_calls)] = None


class ToolTurn(Shape):
    """The result of a call made elsewhere; the id is accepted for the shape's sake, the model reads the content."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn | ToolTurn, Field(discriminator="role")]


def text_of(content: Content) -> str:
    """The text; parts are joined as they are."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
