"""Runs a model that makes frames one after the other for many requests at once, on the shared AR core."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from omnistage.ar.blocks import BlockManager
from omnistage.ar.counters import StepReport
from omnistage.ar.engine import AREngine
from omnistage.ar.request import ARRequest
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.contracts import SpeechOptions
from omnistage.errors import ConfigError, InvalidRequest
from omnistage.urgency import Reading, Urgency
from omnistage_talker.engine.engine import STEP_ALLOWED_S, SpokenFrames
from omnistage_talker.engine.frame_run import FrameRun, RunLimits
from omnistage_talker.engine.groups import GroupSizes
from omnistage_talker.engine.guard import RunawayLimits
from omnistage_talker.engine.prose import prose_of
from omnistage_talker.models.base import FrameArray, Reference, SpeechFacts
from omnistage_talker.models.frames import FrameModel


@dataclass(frozen=True, kw_only=True)
class FrameConfig:
    """Settings of the engine.

    Attributes:
        slots: requests that run at once.
        kv_tokens: positions that the KV cache holds, all requests together.
        block_tokens: positions per block, a multiple of 16.
        prefill_tokens: prompt positions per step when nobody speaks.
        chunk_tokens: prompt positions per step beside running speech; bounds its pause.
        batch_invariant: a request's codes do not depend on what else runs, bit for bit.
        groups: how frames are cut into chunks.
        guard: from where on speech counts as runaway; None for nowhere.
        retry: whether runaway speech that nobody has heard yet, with a seed that nobody asked for, is tried once more
            with another one. Frames are held back for that where the client takes the sound as a whole.
        pace: how many times faster than they sound frames leave at most, each request by itself; None: at once.
        by_deadline: the request whose client runs dry first is served first; else in order of arrival.
    """

    slots: int = 8
    kv_tokens: int = 16384
    block_tokens: int = 16
    prefill_tokens: int = 512
    chunk_tokens: int = 128
    batch_invariant: bool = True
    groups: GroupSizes = field(default_factory=lambda: GroupSizes(first_frames=1, factor=2.0, max_frames=8))
    guard: RunawayLimits | None = field(default_factory=RunawayLimits)
    retry: bool = True
    pace: float | None = None
    by_deadline: bool = True


class FrameEngine:
    """Streams of text to streams of frames; each request is one segment.

    The frames depend on text, options and seed alone, not on timing, on how the text arrived, or on other requests.

    Args:
        model: see there.
        config: see there.
        clock: monotonic seconds, by which clients play.
        on_step: told of each step of the core, in its thread; must be quick.

    Raises:
        ConfigError: settings that contradict one another or the model.
    """

    def __init__(
        self,
        model: FrameModel,
        config: FrameConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> None:
        self._model = model
        self._config = config = config or FrameConfig()
        self._clock = clock
        self._numbers = itertools.count()
        num_blocks = config.kv_tokens // config.block_tokens
        self._context = min(model.context, num_blocks * config.block_tokens)
        try:
            blocks = BlockManager(num_blocks, config.block_tokens, prefix_cache=False)
            limits = SchedulerConfig(config.slots, config.prefill_tokens, config.chunk_tokens, self._context)
            scheduler = Scheduler(limits, blocks)
            runner = model.make_runner(num_blocks, config.block_tokens, batch_invariant=config.batch_invariant)
        except ValueError as error:
            raise ConfigError(f"engine settings: {error}") from error
        self._core = AREngine(runner, scheduler, name="talker", on_step=on_step)
        self._core.start()

    needs_earlier = True

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        return self._config.slots

    @property
    def context(self) -> int:
        """Positions that a request's prompt and frames may have together."""
        return self._context

    @property
    def stalled_s(self) -> float:
        """Seconds by which the current step exceeds what it may take; 0 while all is well."""
        return max(0.0, self._core.stalled_s - STEP_ALLOWED_S)

    def facts(self) -> SpeechFacts:
        """What is fixed for the loaded model."""
        return self._model.facts

    def counts(self) -> dict[str, float]:
        """Gauges and sums of the core under short names, units in the names."""
        return self._core.facts()

    async def warm(self) -> None:
        """Speak a few frames, so that the first request pays for no first use."""
        options, reference = self._model.example()
        utterance = self._model.begin(options, reference)
        utterance.add("Ready.")
        utterance.finish()
        assert utterance.prompt_length is not None
        request = ARRequest(
            "warm",
            (0,) * utterance.prompt_length,
            3,
            payload=utterance.payload(0),
            stop_tokens=frozenset({self._model.end}),
            cache_salt=None,
        )
        async with aclosing(self._core.generate(request)) as outputs:
            async for _ in outputs:
                pass

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
        """Speak one request. Close the iterator (`contextlib.aclosing`) to cancel: it ends between two frames.

        Args:
            pieces: the text, in any pieces; frames are made as soon as there is enough of it.
            options: voice and manner.
            reference: what the voice is cloned from.
            first_segment: 1 if the segment was sent whole by an earlier run.
            first_frame: the frame to begin with, where an earlier run began a chunk.
            earlier: [first_frame, groups] the frames before it, which then need not be made again.
            lenient: for text that a model has written: marks of Markdown are left out, blocks of code are named, and
                a text with nothing to say gives nothing. Else that is an error.
            reading: how the client takes the sound; decides who is served first, and whether frames may be held back.

        Raises:
            InvalidRequest: naming `voice`, `language`, …, or `input`.
            StageFailed: a step failed, or with code `RUNAWAY` the speech went on and on.
        """
        self._model.check_options(options, reference)
        if first_segment > 0:
            return
        hold = reading != "stream" and self._may_retry(options)
        run = FrameRun(
            self._core,
            self._model.begin(options, reference),
            self._limits(options),
            name=f"speech-{next(self._numbers)}",
            seed=options.seed,
            clock=self._clock,
        )
        chunks = run.chunks(
            prose_of(pieces) if lenient else pieces,
            Urgency(reading, now=self._clock(), begun=first_frame > 0),
            first_frame=first_frame,
            earlier=earlier,
            hold=hold,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        if not run.said and not lenient:
            raise InvalidRequest("there is nothing in the text that can be spoken", param="input")

    def _limits(self, options: SpeechOptions) -> RunLimits:
        config, model = self._config, self._model
        return RunLimits(
            end=model.end,
            context=self._context,
            max_frames=options.max_frames or model.max_frames,
            frame_rate_hz=model.facts.frame_rate_hz,
            pace=config.pace,
            groups=config.groups,
            guard=config.guard,
            by_deadline=config.by_deadline,
        )

    def _may_retry(self, options: SpeechOptions) -> bool:
        return self._config.retry and self._config.guard is not None and options.seed_drawn

    async def close(self) -> None:
        """Stop; requests that still run fail with `Unavailable`. Idempotent."""
        await self._core.close()
