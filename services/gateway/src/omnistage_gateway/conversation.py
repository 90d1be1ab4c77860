"""From the turns that clients write to the messages that models read."""

from __future__ import annotations

from collections.abc import Sequence

from omnistage.contracts import ChatMessage
from omnistage.errors import InvalidRequest
from omnistage_gateway.schemas.chat_messages import AssistantTurn, SystemTurn, ToolTurn, Turn, text_of
from omnistage_gateway.transcripts import Transcripts


async def conversation(turns: Sequence[Turn], transcripts: Transcripts) -> tuple[ChatMessage, ...]:
    """The turns as text; an assistant's audio becomes what it said.

    Raises:
        InvalidRequest: an assistant's turn is empty, or its audio is unknown or has expired; names the turn.
    """
    return tuple([await _message(turn, f"messages.[{index}]", transcripts) for index, turn in enumerate(turns)])


async def _message(turn: Turn, where: str, transcripts: Transcripts) -> ChatMessage:
    match turn:
        case AssistantTurn():
            return ChatMessage(role="assistant", content=await _said(turn, where, transcripts), name=turn.name)
        case SystemTurn():
            return ChatMessage(role="system", content=text_of(turn.content), name=turn.name)
        case ToolTurn():
            return ChatMessage(role="tool", content=text_of(turn.content))
        case _:
            return ChatMessage(role="user", content=text_of(turn.content), name=turn.name)


async def _said(turn: AssistantTurn, where: str, transcripts: Transcripts) -> str:
    if turn.audio is None:
        if turn.content is None:
            raise InvalidRequest(
                f"Missing required parameter: '{where}.content'.",
                code="missing_required_parameter",
                param=f"{where}.content",
            )
        return text_of(turn.content)
    if turn.content is not None:
        raise InvalidRequest(
            f"Invalid value for '{where}.content': an assistant's turn has content or audio, not both.",
            param=f"{where}.content",
        )
    text = await transcripts.get(turn.audio.id)
    if text is None:
        raise InvalidRequest(
            f"Invalid value for '{where}.audio.id': there is no such audio, or it has expired.",
            code="audio_not_found",
            param=f"{where}.audio.id",
        )
    return text
