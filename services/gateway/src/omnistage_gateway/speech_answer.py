"""Answering a speech request: from the dispatcher's pieces to bytes, events or one whole file.

Why the speech stopped is said wherever the answer has a place for it behind the sound: in the last event, in the
headers of an answer in one piece, and in a batch. A stream of bytes has none: its headers are gone by then, and
trailers, which HTTP/1.1 has, reach neither the official clients nor most proxies.
"""

from __future__ import annotations

import base64
from typing import Protocol

from omnistage.contracts import AudioDone, FinishReason
from omnistage.errors import StageFailed
from omnistage_gateway.answer import Sender, events_of, server_event
from omnistage_gateway.audio import PooledTranscoder, Transcoder, early_cut
from omnistage_gateway.context import Gateway
from omnistage_gateway.dispatch.interface import AudioPiece
from omnistage_gateway.playback import Playback
from omnistage_gateway.translate import SpeechJob, with_reference
from omnistage_gateway.usage import speech_usage


class SpeechSink(Protocol):
    """How the bytes reach the client."""

    async def begin(self) -> None:
        """The first audio exists: the status is decided."""
        ...

    async def audio(self, data: bytes) -> None:
        """The next bytes, if there are any."""
        ...

    async def done(self, duration_s: float, reason: FinishReason | None) -> None:
        """All is there.

        Args:
            duration_s: of the sound, as it is heard.
            reason: why the speech stopped; None from engines that do not say.
        """
        ...


class _Bytes:
    """As they are, without a length."""

    def __init__(self, sender: Sender, job: SpeechJob) -> None:
        self._sender = sender
        self._job = job

    async def begin(self) -> None:
        await self._sender.start(self._job.audio_format.media_type, answer_headers(self._job))

    async def audio(self, data: bytes) -> None:
        await self._sender.chunk(data)

    async def done(self, duration_s: float, reason: FinishReason | None) -> None:
        await self._sender.end()


class _Events:
    """As server-sent events with base64."""

    def __init__(self, sender: Sender, job: SpeechJob) -> None:
        self._sender = sender
        self._job = job

    async def begin(self) -> None:
        await self._sender.start("text/event-stream; charset=utf-8", answer_headers(self._job), shape="events")

    async def audio(self, data: bytes) -> None:
        if data:
            audio = base64.b64encode(data).decode("ascii")
            await self._sender.chunk(server_event({"type": "speech.audio.delta", "audio": audio}))

    async def done(self, duration_s: float, reason: FinishReason | None) -> None:
        said = {} if reason is None else {"finish_reason": reason}
        usage = speech_usage(self._job.input_chars, duration_s)
        await self._sender.end(server_event({"type": "speech.audio.done", **said, "usage": usage}))


class _Whole:
    """All at once, with a length."""

    def __init__(self, sender: Sender, job: SpeechJob) -> None:
        self._sender = sender
        self._job = job
        self._held = bytearray()

    async def begin(self) -> None:
        """Nothing is sent before the end."""

    async def audio(self, data: bytes) -> None:
        self._held += data

    async def done(self, duration_s: float, reason: FinishReason | None) -> None:
        headers = answer_headers(self._job, reason)
        await self._sender.whole(self._job.audio_format.media_type, bytes(self._held), headers)


def answer_headers(job: SpeechJob, reason: FinishReason | None = None) -> dict[str, str]:
    """Which model really spoke, and why it stopped if that is known by now; audio itself has no place for it."""
    stopped = {} if reason is None else {"omnistage-finish-reason": reason}
    return {"omnistage-model": job.plan.model, **stopped}


async def speak(gateway: Gateway, job: SpeechJob, request_id: str, sender: Sender) -> None:
    """Run the request and send what comes.

    Raises:
        OmnistageError: it failed; if nothing was sent yet, the status is still open.
    """
    sink: SpeechSink = (_Events if job.events else _Whole if job.whole else _Bytes)(sender, job)
    await run_speech(gateway, job, request_id, sink)


async def run_speech(gateway: Gateway, job: SpeechJob, request_id: str, sink: SpeechSink) -> None:
    """Run the request and hand over what comes.

    Raises:
        OmnistageError: it failed.
    """
    if job.source is not None:
        job = with_reference(job, await gateway.cloning.reference(job.source, job.plan, request_id))
    transcoder = Transcoder(job.audio_format, rate_hz=job.rate_hz, tempo=job.tempo, whole=job.whole)
    async with gateway.encoders.using(transcoder) as encoder:
        with Playback(gateway.metrics, job.plan.model, request_id, streamed=not job.whole) as playback:
            reason = await _follow(gateway, job, request_id, sink, encoder, playback)
            await playback.write(sink.audio(await encoder.finish()), encoder.given_s)
            playback.ended()
        await sink.done(encoder.duration_s, reason)


async def _follow(
    gateway: Gateway, job: SpeechJob, request_id: str, sink: SpeechSink, encoder: PooledTranscoder, playback: Playback
) -> FinishReason | None:
    """Pass the sound on; returns why it stopped, if its engines say so."""
    begun = False
    reason: FinishReason | None = None
    async with gateway.dispatcher.run(job.plan, request_id) as running, events_of(running) as events:
        playback.admitted()
        async for event in events:
            if isinstance(event, AudioDone):
                reason = event.finish_reason
            if not isinstance(event, AudioPiece) or not len(event.samples):
                continue
            parts = [event.samples]
            if not begun:
                begun = True
                await sink.begin()
                parts = early_cut(event.samples, event.sample_rate_hz)
            for part in parts:
                data = await encoder.feed(part, event.sample_rate_hz)
                await playback.write(sink.audio(data), encoder.given_s)
    if not begun:
        raise StageFailed("The voice made no sound.", code="no_audio", stage="gateway")
    return reason
