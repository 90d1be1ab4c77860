"""Runs a wave model for many requests at once, off the event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from omnistage.errors import StageFailed
from omnistage.pacing import Pacer
from omnistage.stall import StallWatch
from omnistage.urgency import Reading, Turns, Urgency
from omnistage_codec.engine.batches import Frames, GrowthPolicy, fits
from omnistage_codec.engine.pcm import to_int16
from omnistage_codec.engine.read_ahead import ReadAhead
from omnistage_codec.models.base import WaveFacts, WaveModel

T = TypeVar("T")

STEP_ALLOWED_S = 10.0
"""No run of a model takes so long on any machine that is of use."""


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Settings of the engine.

    Attributes:
        slots: requests at once.
        threads: decoding threads; more than there are free cores only add waiting.
        read_ahead_chunks: chunks read before they are decoded, per request.
        growth: how many frames are decoded at once.
        pace: how many times faster than they sound samples leave at most, each request by itself; None: at once.
        by_deadline: the request whose client runs dry first is decoded first; else they take turns.
    """

    slots: int = 16
    threads: int = 1
    read_ahead_chunks: int = 64
    growth: GrowthPolicy = field(default_factory=GrowthPolicy)
    pace: float | None = None
    by_deadline: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class AudioPiece:
    """The next samples of a request.

    Attributes:
        samples: [n] int16 mono, n > 0, memory of its own.
        offset: index of the first sample within the whole answer.
        sample_rate_hz: samples per second.
        segment: the segment that they belong to.
        text: what the segment says, on its first piece, else empty.
    """

    samples: NDArray[np.int16]
    offset: int
    sample_rate_hz: int
    segment: int
    text: str


class DecodeEngine:
    """Streams of frames to streams of samples.

    The samples depend on the frames, the seed and the voice alone, not on chunking, timing or other requests.

    Args:
        model: decodes.
        config: see there.
        clock: monotonic seconds, by which clients play.
    """

    def __init__(
        self,
        model: WaveModel[Any],
        config: DecodeConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._config = config or DecodeConfig()
        self._clock = clock
        self._turns = Turns(self._config.threads, name="decode", by_deadline=self._config.by_deadline, clock=clock)
        self._watch = StallWatch(STEP_ALLOWED_S)

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        return self._config.slots

    def facts(self) -> WaveFacts:
        """What is fixed for the loaded model."""
        return self._model.facts

    async def warm(self) -> None:
        """Decode once, so that the first request pays for no first use."""
        facts = self._model.facts
        frames = np.zeros((2 * facts.lookahead_frames + 2, facts.frame_width), facts.frame_dtype)
        batch = Frames(frames=frames, segment=0, segment_frame=0, segment_end=True)
        state = self._model.new_state(seed=0, voice="")
        await self._in_turn(Urgency(now=self._clock()), partial(self._decode, state, [batch]))

    async def decode(
        self,
        chunks: AsyncIterator[Frames],
        *,
        seed: int,
        voice: str = "",
        first_offset: int = 0,
        skip_samples: int = 0,
        reading: Reading = "stream",
    ) -> AsyncGenerator[AudioPiece, None]:
        """Decode one request. Close the iterator (`contextlib.aclosing`) to cancel; a step that runs is let run out.

        Args:
            chunks: the frames in order, from the start of any segment; each segment ends explicitly.
            seed: key of the noise.
            voice: the voice that made the frames.
            first_offset: index within the answer of the first segment's first sample. Segments are independent, so
                one that takes over a request begins with the segment in which the delivered samples end.
            skip_samples: samples of the answer that were delivered before; the output begins after them.
            reading: how the client takes the samples; decides who is decoded first, and nothing else.

        Yields:
            Pieces in order without gaps from `skip_samples` on.

        Raises:
            InvalidRequest: no such voice.
            StageFailed: frames that do not continue one another, or the input ended within a segment.
        """
        rate_hz, pace = self._model.facts.sample_rate_hz, self._config.pace
        timeline = _Timeline(first_offset, skip_samples, rate_hz)
        pacer = Pacer(None if pace is None else pace * rate_hz)
        urgency = Urgency(reading, now=self._clock(), begun=skip_samples > 0)
        state = self._model.new_state(seed=seed, voice=voice)
        step = 0
        open_segment: int | None = None
        async with ReadAhead(chunks, limit=self._config.read_ahead_chunks) as waiting:
            while await waiting.wait():
                batch = await self._next_batch(waiting, self._config.growth.limit(step))
                samples = await self._in_turn(urgency, partial(self._decode, state, batch))
                step += 1
                open_segment = None if batch[-1].segment_end else batch[-1].segment
                piece = timeline.place(batch, samples)
                if piece is not None:
                    await pacer.release(len(piece.samples))
                    urgency.made(len(piece.samples) / rate_hz, self._clock())
                    yield piece
        if open_segment is not None:
            raise StageFailed(f"the frames ended within segment {open_segment}")

    async def close(self) -> None:
        """Wait for steps that run and end the threads."""
        await self._turns.close()

    def _decode(self, state: Any, batch: list[Frames]) -> NDArray[np.int16]:
        """Chunk by chunk: joining samples costs a tenth of joining frames, and chunking changes no bit."""
        decoded = [
            self._model.decode(
                state,
                chunk.frames,
                segment=chunk.segment,
                segment_frame=chunk.segment_frame,
                segment_end=chunk.segment_end,
            )
            for chunk in batch
        ]
        return to_int16(np.concatenate(decoded))

    @staticmethod
    async def _next_batch(waiting: ReadAhead[Frames], limit: int) -> list[Frames]:
        """Whatever waits and may be decoded together: at least one chunk."""
        batch: list[Frames] = []
        while (following := waiting.peek()) is not None and fits(batch, following, limit):
            batch.append(await waiting.take())
        return batch

    @property
    def stalled_s(self) -> float:
        """Seconds by which a run of the model exceeds what it may take; 0 while all is well."""
        return self._watch.stalled_s()

    async def _in_turn(self, urgency: Urgency, call: Callable[[], T]) -> T:
        def step() -> T:
            with self._watch.step():
                return call()

        return await self._turns.run(urgency, step)


class _Timeline:
    """Where the next samples lie in the answer."""

    def __init__(self, first_offset: int, skip_samples: int, sample_rate_hz: int) -> None:
        self._skip_samples = skip_samples
        self._sample_rate_hz = sample_rate_hz
        self._offset = first_offset
        self._text = ""

    def place(self, batch: list[Frames], samples: NDArray[np.int16]) -> AudioPiece | None:
        """The piece that these samples make; None if all were delivered before, or there are none yet."""
        start = self._offset
        self._offset += len(samples)
        self._text = next((chunk.text for chunk in batch if chunk.text), self._text)
        fresh = samples[max(0, self._skip_samples - start) :]
        if len(fresh) < len(samples):
            self._text = ""  # was delivered with the segment's first sample
        if not len(fresh):
            return None
        text, self._text = self._text, ""
        return AudioPiece(
            samples=fresh,
            offset=self._offset - len(fresh),
            sample_rate_hz=self._sample_rate_hz,
            segment=batch[0].segment,
            text=text,
        )
