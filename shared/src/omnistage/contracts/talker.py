"""What the talker receives."""

from __future__ import annotations

from typing import Literal

from omnistage.contracts.common import Message, Payload, Record, Work

SpeechTask = Literal["custom_voice", "voice_design", "base"]
"""What makes the voice: a name, a description, or a recording."""


class VoiceReference(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What a voice is cloned from. With `codes` the answer goes on after the recording, else only its timbre is taken.

    Attributes:
        codes: [frames, groups] int32, the codec's tokens of the recording.
        text: what the recording says; belongs to `codes`.
        embedding: [width] float32, the speaker embedding.
    """

    codes: Payload | None = None
    text: str = ""
    embedding: Payload | None = None


class SpeechSampling(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How codec tokens are chosen; None is the model's own default. `residual_*` is for all groups but the first.

    Attributes:
        temperature, residual_temperature: 0 means greedy.
        top_k, residual_top_k: 0 means off.
        top_p, residual_top_p: nucleus in (0, 1].
        repetition_penalty: over the first group's tokens of the answer.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    residual_temperature: float | None = None
    residual_top_k: int | None = None
    residual_top_p: float | None = None


class SpeechOptions(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How a text is to be spoken.

    Attributes:
        voice: a voice of the talker's engine (its own name, never an alias).
        speed: 1.0 is the voice's own pace; what the voice cannot do natively, the gateway stretches.
        seed: key of the counter-based noise.
        instructions: style, for engines that take it.
        language: BCP-47 tag or the engine's own name of it, for engines with several; None lets the engine choose.
        task: what makes the voice, for engines with several ways; None is the checkpoint's own.
        reference: what the voice is cloned from, for engines that clone.
        non_streaming_mode: whether the whole text is read before the first frame; None is the engine's default.
        max_frames: ceiling of frames; reaching it ends the answer with "length".
        sampling: how codec tokens are chosen.
        seed_drawn: nobody asked for this seed, so a failed attempt may be made again with another.
        first_frames: frames that the first sound is made of; 0 leaves it to the engines.
    """

    voice: str
    speed: float = 1.0
    seed: int = 0
    instructions: str | None = None
    language: str | None = None
    task: SpeechTask | None = None
    reference: VoiceReference | None = None
    non_streaming_mode: bool | None = None
    max_frames: int | None = None
    sampling: SpeechSampling | None = None
    seed_drawn: bool = False
    first_frames: int = 0


class SpeakText(Work, frozen=True, kw_only=True, omit_defaults=True, tag="speak_text"):
    """Speak `text`; where it is None, the text comes over the edge that leads into this node."""

    speech: SpeechOptions
    text: str | None = None


class TextChunk(Record, frozen=True, kw_only=True, omit_defaults=True, tag="text_chunk"):
    """A piece of the text to be spoken, in order."""

    text: str


class MediaGrid(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Where a picture or video of the prompt stands.

    Attributes:
        kind: which of the two.
        time, height, width: its patches along each axis.
        seconds_per_step: time between neighbours along the first axis; of videos.
    """

    kind: Literal["image", "video"]
    time: int
    height: int
    width: int
    seconds_per_step: float = 0.0


class ThinkerRows(Record, frozen=True, kw_only=True, omit_defaults=True, tag="thinker_rows"):
    """Consecutive tokens of the thinker as its network saw them: of its prompt first, then of its answer.

    Attributes:
        tokens: their ids.
        start: position of the first one, counted from the beginning of the prompt.
        prompt_tokens: length of the prompt; no record holds tokens of both prompt and answer.
        embeds: [tokens, width] float32, layer 0, media in their places.
        hidden: [tokens, width] float32, of the layer that the talker takes; None where it takes none of these tokens.
        marks: [3, width] float32, the embeddings of the tokens that begin, end and pad speech; on the first record.
        media: pictures and videos of the prompt, in order; on the first record.
    """

    tokens: tuple[int, ...]
    start: int
    prompt_tokens: int
    embeds: Payload
    hidden: Payload | None = None
    marks: Payload | None = None
    media: tuple[MediaGrid, ...] = ()


TalkerWork = SpeakText
