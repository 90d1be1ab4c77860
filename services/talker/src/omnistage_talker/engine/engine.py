"""Runs a speech model for many requests at once, off the event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from omnistage.contracts import FinishReason, SpeechOptions
from omnistage.errors import InvalidRequest, StageFailed
from omnistage.pacing import Pacer
from omnistage.stall import StallWatch
from omnistage.urgency import Reading, Turns, Urgency
from omnistage_talker.engine.clauses import ClauseLimits, ClauseSplitter
from omnistage_talker.engine.code_blocks import BlockFinder, CodeBlock, Prose
from omnistage_talker.engine.groups import FrameGrouper, GroupSizes
from omnistage_talker.models.base import Clause, FrameArray, Reference, SpeechFacts, SpeechModel, Utterance

T = TypeVar("T")

STEP_ALLOWED_S = 10.0
"""No run of a model takes so long on any machine that is of use."""


@dataclass(frozen=True, kw_only=True)
class SpeechConfig:
    """Settings of the engine.

    Attributes:
        slots: requests at once.
        threads: threads that run the model; more than there are free cores only add waiting.
        clauses: how text is cut.
        groups: how frames are cut.
        pace: how many times faster than they sound frames leave at most, each request by itself; None: at once.
        by_deadline: the request whose client runs dry first is spoken first; else they take turns.
    """

    slots: int = 8
    threads: int = 1
    clauses: ClauseLimits = field(default_factory=ClauseLimits)
    groups: GroupSizes = field(default_factory=GroupSizes)
    pace: float | None = None
    by_deadline: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class SpokenFrames:
    """The next frames of a request; fields as in `omnistage.contracts.FrameChunk`.

    Attributes:
        frames: [n, width], n > 0, C-contiguous, memory of its own.
        segment: number of the segment; one per clause that is spoken.
        segment_frame: index within the segment of the first frame.
        segment_end: whether the segment ends with them.
        text: the clause, on its first frames, else empty.
        finish_reason: on the last frames of all, from models that know it.
    """

    frames: FrameArray
    segment: int
    segment_frame: int
    segment_end: bool
    text: str
    finish_reason: FinishReason | None = None


class SpeechEngine:
    """Streams of text to streams of frames.

    The chunks, their borders included, depend on the text and the options alone, not on timing, on how the text
    arrived, or on other requests. Segments are independent, so a new holder goes on at any of them.

    Args:
        model: speaks.
        config: see there.
        clock: monotonic seconds, by which clients play.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: SpeechConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._config = config or SpeechConfig()
        self._clock = clock
        self._turns = Turns(self._config.threads, name="speak", by_deadline=self._config.by_deadline, clock=clock)
        self._watch = StallWatch(STEP_ALLOWED_S)

    needs_earlier = False

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        return self._config.slots

    def facts(self) -> SpeechFacts:
        """What is fixed for the loaded model."""
        return self._model.facts

    async def warm(self) -> None:
        """Speak once, so that the first request pays for no first use."""
        options = SpeechOptions(voice=self._model.facts.voices[0])
        urgency = Urgency(now=self._clock())
        utterance = await self._in_turn(urgency, partial(self._model.prepare, Clause(text="Ready."), lenient=False))
        if utterance is None:
            raise StageFailed("the model has nothing to say to a word of English")
        await self._in_turn(urgency, lambda: list(self._model.speak(utterance, options, segment=0)))

    async def speak(
        self,
        pieces: AsyncIterator[str],
        options: SpeechOptions,
        *,
        reference: Reference | None = None,
        first_segment: int = 0,
        first_frame: int = 0,
        earlier: FrameArray | None = None,
        lenient: bool = False,
        reading: Reading = "stream",
    ) -> AsyncGenerator[SpokenFrames, None]:
        """Speak one request. Close the iterator (`contextlib.aclosing`) to cancel; a run of the model is let run out.

        Args:
            pieces: the text, in any pieces.
            options: voice and manner.
            reference: what the voice is cloned from; these models have voices of their own and refuse it.
            first_segment: the segment to begin with; those before it are counted but not spoken.
            first_frame: the frame of that segment to begin with, where an earlier run began a chunk.
            earlier: the frames before it; not needed here (`needs_earlier`).
            lenient: for text that a model has written: marks of Markdown and what cannot be spoken are left out, a
                fenced block of code is one clause, however long, and a text with nothing to say gives no segment.
                Otherwise either is an error, and since each piece is checked before any of it is spoken, a text that
                comes in one piece is refused before it sounds.
            reading: how the client takes the sound; decides who is spoken first, and nothing else.

        Raises:
            InvalidRequest: naming `voice`, `speed`, …, or `input`.
            StageFailed: the model could not run.
        """
        self._model.check_options(options)
        if reference is not None:
            raise InvalidRequest("this model does not clone voices", param="ref_audio")
        pace = self._config.pace
        rate_hz = self._model.facts.frame_rate_hz
        pacer = Pacer(None if pace is None else pace * rate_hz)
        urgency = Urgency(reading, now=self._clock(), begun=(first_segment, first_frame) > (0, 0))
        segment = 0
        async for clause in self._clauses(pieces, urgency, lenient=lenient):
            utterance = await self._in_turn(urgency, partial(self._model.prepare, clause, lenient=lenient))
            if utterance is None:
                continue
            if segment >= first_segment:
                async for chunk in self._speak_segment(utterance, options, segment, urgency):
                    if segment > first_segment or chunk.segment_frame >= first_frame:
                        await pacer.release(len(chunk.frames))
                        urgency.made(len(chunk.frames) / rate_hz, self._clock())
                        yield chunk
            segment += 1
        if segment == 0 and not lenient:
            raise InvalidRequest("there is nothing in the text that can be spoken", param="input")

    async def close(self) -> None:
        """Wait for runs of the model and end the threads."""
        await self._turns.close()

    async def _clauses(self, pieces: AsyncIterator[str], urgency: Urgency, *, lenient: bool) -> AsyncIterator[Clause]:
        splitter = ClauseSplitter(self._config.clauses)
        blocks = BlockFinder()
        async for piece in pieces:
            if not lenient:
                await self._in_turn(urgency, partial(self._model.check_text, piece))
            for clause in _clauses_of(blocks.feed(piece) if lenient else [Prose(piece)], splitter):
                yield clause
        for clause in _clauses_of(blocks.finish(), splitter):
            yield clause
        for clause in splitter.finish():
            yield clause

    async def _speak_segment(
        self, utterance: Utterance, options: SpeechOptions, segment: int, urgency: Urgency
    ) -> AsyncIterator[SpokenFrames]:
        grouper = FrameGrouper(self._config.groups, segment)
        runs = self._model.speak(utterance, options, segment=segment)
        position = 0
        while (frames := await self._in_turn(urgency, lambda: next(runs, None))) is not None:
            for group in grouper.push(frames):
                yield _chunk(group, utterance, segment, position, end=False)
                position += len(group)
        rest = grouper.finish()
        if rest is None:
            raise StageFailed("the model gave no frames for a clause")
        yield _chunk(rest, utterance, segment, position, end=True)

    @property
    def stalled_s(self) -> float:
        """Seconds by which a run of the model exceeds what it may take; 0 while all is well."""
        return self._watch.stalled_s()

    async def _in_turn(self, urgency: Urgency, call: Callable[[], T]) -> T:
        def step() -> T:
            with self._watch.step():
                return call()

        return await self._turns.run(urgency, step)


def _clauses_of(parts: list[Prose | CodeBlock], splitter: ClauseSplitter) -> Iterator[Clause]:
    """The clauses that are certain; a block of code is one, and ends the sentence before it."""
    for part in parts:
        if isinstance(part, CodeBlock):
            yield from splitter.finish()
            yield Clause(text=part.text)
        else:
            yield from splitter.feed(part.text)


def _chunk(frames: FrameArray, utterance: Utterance, segment: int, position: int, *, end: bool) -> SpokenFrames:
    return SpokenFrames(
        frames=frames,
        segment=segment,
        segment_frame=position,
        segment_end=end,
        text=utterance.clause.text if position == 0 else "",
    )
