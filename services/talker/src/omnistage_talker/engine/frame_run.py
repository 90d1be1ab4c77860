"""One request on the AR core: its text, its attempts, its chunks."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnistage.ar.engine import AREngine
from omnistage.ar.request import ARRequest
from omnistage.contracts import FinishReason
from omnistage.errors import Cancelled, InvalidRequest, StageFailed
from omnistage.pacing import Pacer
from omnistage.urgency import Urgency
from omnistage_talker.engine.arriving import ArrivingUtterance
from omnistage_talker.engine.engine import SpokenFrames
from omnistage_talker.engine.groups import FrameGrouper, GroupSizes
from omnistage_talker.engine.guard import RunawayGuard, RunawayLimits
from omnistage_talker.models.base import FrameArray
from omnistage_talker.models.frames import Utterance

RUNAWAY = "runaway_speech"
"""Code of the error that ends speech which goes on and on."""

HOLD_S = 20.0
"""Frames are held back no longer: the codec counts a talker that says nothing for a minute as gone."""

_SECOND_SEED = 0x5851F42D4C957F2D


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """What a run keeps to.

    Attributes:
        end: emitted after the last frame.
        context: positions that prompt and frames may have together.
        max_frames: ceiling of frames.
        frame_rate_hz: frames per second of sound.
        pace, groups, guard, by_deadline: see `omnistage_talker.engine.frames.FrameConfig`.
    """

    end: tuple[int, ...]
    context: int
    max_frames: int
    frame_rate_hz: float
    pace: float | None
    groups: GroupSizes
    guard: RunawayLimits | None
    by_deadline: bool


class FrameRun:
    """Speaks one utterance.

    Args:
        core: runs the model.
        utterance: without text yet.
        limits: see there.
        name: unique in the core.
        seed: of the first attempt.
        clock: monotonic seconds.

    Attributes:
        said: whether the text had anything to say; known at the end.
    """

    def __init__(
        self,
        core: AREngine,
        utterance: Utterance,
        limits: RunLimits,
        *,
        name: str,
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        self.said = False
        self._core = core
        self._utterance = utterance
        self._limits = limits
        self._name = name
        self._seed = seed
        self._clock = clock
        pace = limits.pace
        self._request_id = name
        self._arriving: ArrivingUtterance | None = None
        self._pacer = Pacer(None if pace is None else pace * limits.frame_rate_hz)

    async def chunks(
        self,
        pieces: AsyncIterator[str],
        urgency: Urgency,
        *,
        first_frame: int = 0,
        earlier: FrameArray | None = None,
        hold: bool = False,
    ) -> AsyncGenerator[SpokenFrames, None]:
        """The frames from `first_frame` on; arguments and errors as of `FrameEngine.speak`.

        Args:
            hold: keep frames back until the last is known, up to `HOLD_S`, and try again once if they run away before
                any has left.
        """
        async with ArrivingUtterance(pieces, self._utterance, self._on_text) as arriving:
            self._arriving = arriving
            length = await arriving.begun()
            if not length:
                return
            self.said = True
            self._check_length(length)
            spoken = self._held(urgency, earlier) if hold else self._attempt(0, urgency, earlier)
            async with aclosing(spoken):
                async for chunk in spoken:
                    if chunk.segment_frame < first_frame:
                        continue
                    await self._pacer.release(len(chunk.frames))
                    urgency.made(len(chunk.frames) / self._limits.frame_rate_hz, self._clock())
                    if self._limits.by_deadline:
                        self._core.set_due(self._request_id, urgency.due)
                    yield chunk

    def _check_length(self, length: int) -> None:
        context = self._limits.context
        if length >= context:
            raise InvalidRequest(
                f"text and voice take {length} positions; this engine has {context}, of which frames need some",
                param="input",
                code="context_length_exceeded",
            )

    def _on_text(self) -> None:
        """More text is there, or none will come because its source failed: then nobody waits for it any more."""
        if self._arriving is not None and self._arriving.error is not None:
            self._core.abort(self._request_id)
        else:
            self._core.wake()

    async def _held(self, urgency: Urgency, earlier: FrameArray | None) -> AsyncGenerator[SpokenFrames, None]:
        """The first attempt if it ends well while it may be held back, else the second."""
        number = 0 if earlier is None else await self._number_of(earlier, urgency)
        if earlier is None:
            held: list[SpokenFrames] = []
            until = self._clock() + HOLD_S
            try:
                async with aclosing(self._attempt(number, urgency, None)) as chunks:
                    async for chunk in chunks:
                        held.append(chunk)
                        while held and (chunk.segment_end or self._clock() > until):
                            yield held.pop(0)
                return
            except StageFailed as error:
                if error.code != RUNAWAY or not held or held[0].segment_frame > 0:
                    raise
            number = 1
        async with aclosing(self._attempt(number, urgency, earlier)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _number_of(self, earlier: FrameArray, urgency: Urgency) -> int:
        """Which attempt sent these frames: the first one makes them again, or else it was the second."""
        try:
            async with aclosing(self._attempt(0, urgency, None)) as chunks:
                async for chunk in chunks:
                    sent = earlier[chunk.segment_frame : chunk.segment_frame + len(chunk.frames)]
                    if not np.array_equal(chunk.frames[: len(sent)], sent):
                        return 1
                    if chunk.segment_frame + len(chunk.frames) >= len(earlier):
                        return 0
        except StageFailed as error:
            if error.code != RUNAWAY:
                raise
        return 1

    async def _attempt(
        self, number: int, urgency: Urgency, earlier: FrameArray | None
    ) -> AsyncGenerator[SpokenFrames, None]:
        """Chunks from the first frame on, those of `earlier` included."""
        self._request_id = f"{self._name}.{number}"
        cutter = _Cutter(self._limits.groups)
        guard = None if self._limits.guard is None else RunawayGuard(self._limits.guard)
        emitted = () if earlier is None else tuple(tuple(frame) for frame in earlier.tolist())
        for frame in emitted:
            self._look(guard, frame)
            for chunk in cutter.push(frame):
                yield chunk
        reason: FinishReason = "stop"
        try:
            async with aclosing(self._core.generate(self._request(number, urgency, emitted))) as outputs:
                async for output in outputs:
                    reason = output.finish_reason or reason
                    made = output.token
                    if not isinstance(made, tuple) or made == self._limits.end:
                        continue
                    self._look(guard, made)
                    for chunk in cutter.push(made):
                        yield chunk
        except Cancelled:
            assert self._arriving is not None
            if self._arriving.error is not None:
                raise self._arriving.error from None
            raise
        yield cutter.finish(reason)

    def _look(self, guard: RunawayGuard | None, frame: tuple[int, ...]) -> None:
        fault = None if guard is None else guard.fault(frame[0], self._utterance.text_tokens)
        if fault is not None:
            raise StageFailed(f"the speech ran away: {fault}", code=RUNAWAY)

    def _request(self, number: int, urgency: Urgency, emitted: tuple[tuple[int, ...], ...]) -> ARRequest:
        utterance, limits = self._utterance, self._limits
        length = utterance.prompt_length
        assert length is not None
        return ARRequest(
            request_id=self._request_id,
            prompt=(0,) * length,
            max_new_tokens=min(limits.max_frames, limits.context - length),
            payload=utterance.payload(self._seed ^ _SECOND_SEED if number else self._seed),
            emitted=emitted,
            stop_tokens=frozenset({limits.end}),
            due=urgency.due if limits.by_deadline else math.inf,
            cache_salt=None,
            ready=utterance.ready,
        )


class _Cutter:
    """Frames in, chunks out."""

    def __init__(self, groups: GroupSizes) -> None:
        self._grouper = FrameGrouper(groups)
        self._position = 0

    def push(self, frame: tuple[Any, ...]) -> Iterator[SpokenFrames]:
        for frames in self._grouper.push(np.array([frame], np.int32)):
            yield self._chunk(frames, None)

    def finish(self, reason: FinishReason) -> SpokenFrames:
        rest = self._grouper.finish()
        if rest is None:
            raise StageFailed("the model gave no frames")
        return self._chunk(rest, reason)

    def _chunk(self, frames: FrameArray, reason: FinishReason | None) -> SpokenFrames:
        chunk = SpokenFrames(
            frames=np.ascontiguousarray(frames),
            segment=0,
            segment_frame=self._position,
            segment_end=reason is not None,
            text="",
            finish_reason=reason,
        )
        self._position += len(frames)
        return chunk
