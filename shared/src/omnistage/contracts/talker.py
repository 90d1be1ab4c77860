"""What the talker receives."""

from __future__ import annotations

from omnistage.contracts.common import Message, Record, Work


class SpeechOptions(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How a text is to be spoken.

    Attributes:
        voice: a voice of the talker's engine (its own name, never an alias).
        speed: 1.0 is the voice's own pace; what the voice cannot do natively, the gateway stretches.
        seed: key of the counter-based noise.
        instructions: style, for engines that take it.
        language: BCP-47 tag, for engines with several.
    """

    voice: str
    speed: float = 1.0
    seed: int = 0
    instructions: str | None = None
    language: str | None = None


class SpeakText(Work, frozen=True, kw_only=True, omit_defaults=True, tag="speak_text"):
    """Speak `text`; where it is None, the text comes over the edge that leads into this node."""

    speech: SpeechOptions
    text: str | None = None


class TextChunk(Record, frozen=True, kw_only=True, omit_defaults=True, tag="text_chunk"):
    """A piece of the text to be spoken, in order."""

    text: str


TalkerWork = SpeakText
