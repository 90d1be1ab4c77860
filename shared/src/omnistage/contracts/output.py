"""What the gateway receives: the out logs of a request."""

from __future__ import annotations

from typing import Literal

from omnistage.contracts.common import Message, Payload, Record

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class TokenLogprob(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Log-probability of one token.

    Attributes:
        token: its text as the tokenizer shows it.
        data: its UTF-8 bytes.
        logprob: natural logarithm.
        top: the likeliest alternatives at that position.
    """

    token: str
    data: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TextDelta(Record, frozen=True, kw_only=True, omit_defaults=True, tag="text_delta"):
    """Text that was generated since the last one.

    Attributes:
        text: whole characters only, never half of one.
        token_ids: the tokens that this delta is made of (what a new holder feeds back to resume).
        logprobs: one entry per token, where asked for.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class TextDone(Record, frozen=True, kw_only=True, omit_defaults=True, tag="text_done"):
    """The last record before the end of a text edge: why it stopped, and what it cost.

    Attributes:
        cached_tokens: of the prompt's tokens, those that had been computed before.
        audio_tokens, image_tokens, video_tokens: of the prompt's tokens, those that stand for media.
    """

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0


class AudioDelta(Record, frozen=True, kw_only=True, omit_defaults=True, tag="audio_delta"):
    """The next samples.

    Attributes:
        payload: [samples] int16 or float32 in [-1, 1], mono.
        sample_rate_hz: the decoder's own rate.
        offset: index of the first sample within the whole answer; overlaps are dropped by it.
        segment: the talker's segment that the samples belong to.
        text: what that segment says, on its first delta, else empty.
    """

    payload: Payload
    sample_rate_hz: int
    offset: int
    segment: int = 0
    text: str = ""


class AudioDone(Record, frozen=True, kw_only=True, omit_defaults=True, tag="audio_done"):
    """The last record before the end of an audio edge, from engines that know it: why the speech stopped.

    Attributes:
        finish_reason: "stop", or "length" where a ceiling of frames cut it.
    """

    finish_reason: FinishReason


class EncodedReference(Record, frozen=True, kw_only=True, omit_defaults=True, tag="encoded_reference"):
    """What a recording is to a talker; the fields of a `VoiceReference` are made of it.

    Attributes:
        codes: [frames, groups] int32, the codec's tokens of the recording.
        embedding: [width] float32, the speaker embedding; None from engines that have none.
        frame_rate_hz: frames per second.
        fingerprint: names the encoder's weights: another one makes other codes of the same recording.
    """

    codes: Payload
    embedding: Payload | None = None
    frame_rate_hz: float
    fingerprint: str
