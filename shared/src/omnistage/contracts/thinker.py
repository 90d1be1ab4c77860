"""What the thinker receives."""

from __future__ import annotations

from typing import Literal

import msgspec

from omnistage.contracts.common import Message, Payload, Work
from omnistage.contracts.talker import SpeechOptions

MediaKind = Literal["audio", "image", "video"]
"""What a file is to a model."""


class MediaPart(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A recording, a picture or a video within a turn.

    Attributes:
        kind: what it is to the model.
        format: of the file, told by its first bytes and not by the client: "png", "wav", "mov" and the like.
        at: so many characters of the turn's content stand before it.
        offset, nbytes: where the file lies in the work's `payload`.
        param: the request's field that named it, for errors.
    """

    kind: MediaKind
    format: str
    at: int
    offset: int
    nbytes: int
    param: str = ""


class ChatMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One turn.

    Attributes:
        content: all of its text.
        media: what stands between the text, in order.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    media: tuple[MediaPart, ...] = ()


class Sampling(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen.

    Attributes:
        temperature: 0 means greedy.
        top_p: nucleus in (0, 1].
        top_k: 0 means off.
        seed: key of the counter-based generator; the gateway always sets one.
        max_tokens: ceiling of new tokens; None means up to the context's end.
        stop: strings that end the answer and are not part of it.
        frequency_penalty, presence_penalty: as in OpenAI's API, -2 to 2.
        logprobs: None for none, else the number of alternatives (0 to 20) beside the chosen token.
        logit_bias: token id -> bias.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: int | None = None
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)


class GenerateText(Work, frozen=True, kw_only=True, omit_defaults=True, tag="generate_text"):
    """Answer a conversation. With `speech`, the text also goes to the talker, clause by clause.

    Attributes:
        payload: [bytes] uint8, the files of all media parts, one behind the other; None where there are none.
        audio_in_video: the sound of videos is heard with their pictures.
    """

    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    speech: SpeechOptions | None = None
    payload: Payload | None = None
    audio_in_video: bool = False


ThinkerWork = GenerateText
