"""Runs a wave model for many requests at once, off the event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omnistage.errors import StageFailed
from omnistage.pacing import Pacer
from omnistage.stall import StallWatch
from omnistage.urgency import Reading, Turns, Urgency
from omnistage_codec.engine.batches import Frames, continues, enough, fits, split
from omnistage_codec.engine.coalescing import Coalescing
from omnistage_codec.engine.growth import Growth, GrowthPolicy, Progress, Wish
from omnistage_codec.engine.pcm import to_int16
from omnistage_codec.engine.read_ahead import ReadAhead
from omnistage_codec.engine.steps import BatchSteps, SingleSteps, Steps
from omnistage_codec.engine.timeline import AudioPiece, Timeline
from omnistage_codec.models.base import BatchWaveModel, FrameArray, WaveFacts, WaveModel

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
        coalescing: how long steps of several requests wait for one another, for families that decode them together.
        pace: how many times faster than they sound samples leave at most, each request by itself; None: at once.
        by_deadline: the request whose client runs dry first is decoded first; else they take turns.
    """

    slots: int = 16
    threads: int = 1
    read_ahead_chunks: int = 64
    growth: Growth = field(default_factory=GrowthPolicy)
    coalescing: Coalescing = field(default_factory=Coalescing)
    pace: float | None = None
    by_deadline: bool = True


class _Course:
    """How far a request is."""

    def __init__(self, urgency: Urgency, reading: Reading, first_frames: int) -> None:
        self._urgency = urgency
        self._reading = reading
        self._first_frames = first_frames
        self._steps = 0
        self._last_frames = 0

    def went(self, batch: Sequence[Frames]) -> None:
        """A step was made of these."""
        self._steps += 1
        self._last_frames = sum(len(chunk.frames) for chunk in batch)

    def progress(self, timeline: Timeline, now: float) -> Progress:
        return Progress(
            steps=self._steps,
            last_frames=self._last_frames,
            buffered_s=max(0.0, self._urgency.due - now),
            catching_up=timeline.delivered > 0,
            reading=self._reading,
            first_frames=self._first_frames,
        )


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
        self._live = 0
        self._watch = StallWatch(STEP_ALLOWED_S)
        self._steps = self._make_steps()

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
        await self._steps.decode(Urgency(now=self._clock()), state, [batch])

    async def decode(
        self,
        chunks: AsyncIterator[Frames],
        *,
        seed: int,
        voice: str = "",
        context: FrameArray | None = None,
        first_frames: int = 0,
        first_offset: int = 0,
        skip_samples: int = 0,
        reading: Reading = "stream",
    ) -> AsyncGenerator[AudioPiece, None]:
        """Decode one request. Close the iterator (`contextlib.aclosing`) to cancel; a step that runs is let run out.

        Args:
            chunks: the frames in order, from the start of any segment; each segment ends explicitly.
            seed: key of the noise.
            voice: the voice that made the frames.
            context: frames that sounded before the first one; the decoder is warmed with them at once.
            first_frames: frames of the first step; 0 leaves it to the growth policy.
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
        timeline = Timeline(first_offset, skip_samples, rate_hz)
        pacer = Pacer(None if pace is None else pace * rate_hz)
        urgency = Urgency(reading, now=self._clock(), begun=skip_samples > 0)
        state = self._model.new_state(seed=seed, voice=voice, context=context)
        course = _Course(urgency, reading, first_frames)
        open_segment: int | None = None
        async with self._counted(), ReadAhead(chunks, limit=self._config.read_ahead_chunks) as waiting:
            if context is not None:
                await self._steps.decode(urgency, state, [self._nothing()])
            while await waiting.wait():
                wish = self._config.growth.wish(course.progress(timeline, self._clock()))
                batch = await self._next_batch(waiting, wish)
                silent = timeline.delivered // self._model.facts.samples_per_frame
                samples = to_int16(await self._steps.decode(urgency, state, batch, silent=silent))
                course.went(batch)
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
        await self._steps.close()

    def _make_steps(self) -> Steps:
        config = self._config
        if isinstance(self._model, BatchWaveModel):
            return BatchSteps(
                self._model,
                coalescing=config.coalescing,
                live=lambda: self._live,
                watch=self._watch,
                threads=config.threads,
                clock=self._clock,
            )
        turns = Turns(config.threads, name="decode", by_deadline=config.by_deadline, clock=self._clock)
        return SingleSteps(self._model, turns, self._watch)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1

    def _nothing(self) -> Frames:
        """No frames: what a state is warmed by its context with."""
        facts = self._model.facts
        none = np.empty((0, facts.frame_width), facts.frame_dtype)
        return Frames(frames=none, segment=0, segment_frame=0, segment_end=False)

    @staticmethod
    async def _next_batch(waiting: ReadAhead[Frames], wish: Wish) -> list[Frames]:
        """What may be decoded together: at least one chunk, or part of it."""
        await waiting.gather(lambda chunks: enough(chunks, wish.wanted), wish.patience_s)
        batch: list[Frames] = []
        while (following := waiting.peek()) is not None and continues(batch, following):
            room = wish.limit - sum(len(chunk.frames) for chunk in batch)
            if wish.split and 0 < room < len(following.frames):
                head, rest = split(await waiting.take(), room)
                waiting.put_back(rest)
                batch.append(head)
            elif fits(batch, following, wish.limit):
                batch.append(await waiting.take())
            else:
                break
        return batch

    @property
    def stalled_s(self) -> float:
        """Seconds by which a run of the model exceeds what it may take; 0 while all is well."""
        return self._watch.stalled_s()
