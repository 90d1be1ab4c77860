"""Running the answers of one chat request side by side."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from omnistage.contracts import TextDelta, TextDone
from omnistage.errors import InvalidRequest, OmnistageError, StageFailed
from omnistage.runtime.tasks import together
from omnistage_gateway.answer import events_of
from omnistage_gateway.audio import DEFAULT_RATE_HZ, PooledTranscoder, Samples, Transcoder
from omnistage_gateway.chat_voice import CHAT_VOICE
from omnistage_gateway.context import Gateway
from omnistage_gateway.dispatch.interface import AudioPiece, Event
from omnistage_gateway.playback import Playback
from omnistage_gateway.translate import ChatJob, with_chat_reference
from omnistage_gateway.usage import Answered

_OF_VOICE = ("ref_audio", "speaker_embedding")
"""Fields of a kept voice that talkers know by these names."""

SILENCE_S = 0.2
"""What is heard of an answer that has no sound at all, so that its audio is a file that can be played."""


class ChatSink(Protocol):
    """Where the parts of the answers go. Called by several answers at once."""

    async def begin(self) -> None:
        """Something has arrived: the status is decided. Called before anything else; more than once."""
        ...

    async def text(self, index: int, delta: TextDelta) -> None: ...

    async def audio(self, index: int, data: bytes) -> None: ...

    async def finish(self, index: int, done: TextDone) -> None:
        """The answer number `index` is complete."""
        ...


async def run_answers(gateway: Gateway, job: ChatJob, request_id: str, sink: ChatSink) -> list[Answered]:
    """Run all answers to their end; the first that fails ends the others.

    Returns:
        Finish reason and usage of each.

    Raises:
        OmnistageError: an answer failed.
    """
    if job.source is not None:
        reference = await gateway.cloning.reference(job.source, job.plans[0], request_id, named=CHAT_VOICE)
        job = with_chat_reference(job, reference)
    many = len(job.plans) > 1
    return await together(
        *(
            _answer(gateway, job, index, f"{request_id}-{index}" if many else request_id, sink)
            for index in range(len(job.plans))
        )
    )


async def _answer(gateway: Gateway, job: ChatJob, index: int, request_id: str, sink: ChatSink) -> Answered:
    audio_s = 0.0
    if job.audio_format is None:
        done = await _follow(gateway, job, index, request_id, sink, None)
    else:
        transcoder = Transcoder(job.audio_format, whole=not job.stream)
        async with gateway.encoders.using(transcoder) as encoder:
            with Playback(gateway.metrics, job.model, request_id, streamed=job.stream) as playback:
                voice = _Voice(index, sink, encoder, playback)
                done = await _follow(gateway, job, index, request_id, sink, voice)
                await voice.finish()
            audio_s = encoder.duration_s
    await sink.finish(index, done)
    return Answered(done, audio_s)


class _Voice:
    """The sound of one answer on its way to the client."""

    def __init__(self, index: int, sink: ChatSink, encoder: PooledTranscoder, playback: Playback) -> None:
        self._index = index
        self._sink = sink
        self._encoder = encoder
        self.playback = playback

    async def feed(self, samples: Samples, rate_hz: int) -> None:
        """Send the next samples."""
        await self._write(await self._encoder.feed(samples, rate_hz))

    async def finish(self) -> None:
        """Send what the encoder still holds."""
        if not self._encoder.begun:
            # Nothing in the text can be spoken. No format can hold nothing, and players refuse an empty file.
            await self.feed(np.zeros(round(SILENCE_S * DEFAULT_RATE_HZ), np.int16), DEFAULT_RATE_HZ)
        await self._write(await self._encoder.finish())
        self.playback.ended()

    async def _write(self, data: bytes) -> None:
        if data:
            await self.playback.write(self._sink.audio(self._index, data), self._encoder.given_s)


async def _follow(
    gateway: Gateway, job: ChatJob, index: int, request_id: str, sink: ChatSink, voice: _Voice | None
) -> TextDone:
    done: TextDone | None = None
    try:
        async with gateway.dispatcher.run(job.plans[index], request_id) as running, events_of(running) as events:
            if voice is not None:
                voice.playback.admitted()
            async for event in events:
                await sink.begin()
                if isinstance(event, TextDone):
                    done = event
                else:
                    await _pass_on(event, index, sink, voice)
    except InvalidRequest as error:
        raise _as_own_fault(error) from error
    if done is None:
        raise StageFailed("The answer ended without saying why.", code="incomplete_answer", stage="gateway")
    return done


async def _pass_on(event: Event, index: int, sink: ChatSink, voice: _Voice | None) -> None:
    if isinstance(event, TextDelta):
        if event.text or event.logprobs:
            await sink.text(index, event)
    elif isinstance(event, AudioPiece) and voice is not None and len(event.samples):
        await voice.feed(event.samples, event.sample_rate_hz)


def _as_own_fault(error: InvalidRequest) -> OmnistageError:
    """What the voice refuses in a conversation is the model's text, not the client's; but it named the voice."""
    if error.param in _OF_VOICE:
        return InvalidRequest(f"Invalid value for '{CHAT_VOICE}': {error.message}.", code=error.code, param=CHAT_VOICE)
    if error.stage in ("talker", "codec") or error.param == "input":
        return StageFailed("The answer could not be spoken.", code="answer_not_speakable", stage=error.stage)
    return error
