"""Encodes recordings: each content once, several together, off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import soxr
from numpy.typing import NDArray

from omnistage.errors import InvalidRequest, OmnistageError
from omnistage.stall import StallWatch
from omnistage.urgency import Urgency
from omnistage_codec.engine.batch_turns import BatchTurns
from omnistage_codec.engine.coalescing import Coalescing
from omnistage_codec.engine.reference_cache import ReferenceCache, ReferenceKey, content_of, copy_of
from omnistage_codec.models.base import Reference, ReferenceFacts, ReferenceModel, Samples

Recording = NDArray[np.int16] | NDArray[np.float32]

ENCODE_ALLOWED_S = 60.0
"""No pass takes so long on any machine that is of use (measured: 7 times real time on one core)."""

_RATES_HZ = (4_000, 384_000)
_FULL_SCALE = np.float32(1.0 / 32768.0)


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """Settings of the engine.

    Attributes:
        max_seconds: the longest recording.
        pass_seconds: recordings that the model is given at once, together; a longer one goes alone.
        cache_bytes: results that are kept.
        coalescing: how long recordings wait for one another; those that come during a run share the next in any case.
    """

    max_seconds: float = 60.0
    pass_seconds: float = 60.0
    cache_bytes: int = 64 << 20
    coalescing: Coalescing = field(default_factory=lambda: Coalescing(max_batch=8))


@dataclass(frozen=True)
class _Clip:
    samples: Recording
    sample_rate_hz: int


class ReferenceEngine:
    """Recordings to codes and speaker embeddings.

    Args:
        model: encodes.
        config: see there.
        clock: monotonic seconds.

    Attributes:
        encoded: recordings that the model has been given.
        hits: requests that were answered from the cache.
        joined: requests that waited for one that was being encoded already.
    """

    def __init__(
        self,
        model: ReferenceModel,
        config: ReferenceConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.encoded = 0
        self.hits = 0
        self.joined = 0
        self._model = model
        self._config = config or ReferenceConfig()
        self._clock = clock
        self._cache = ReferenceCache(self._config.cache_bytes)
        self._in_flight: dict[ReferenceKey, asyncio.Future[Reference]] = {}
        self._watch = StallWatch(ENCODE_ALLOWED_S)
        self._turns: BatchTurns[_Clip, Reference] = BatchTurns(
            self._encode,
            name="encode",
            coalescing=self._config.coalescing,
            live=lambda: len(self._in_flight),
            clock=clock,
        )

    @property
    def facts(self) -> ReferenceFacts:
        """What is fixed for the loaded model."""
        return self._model.facts

    @property
    def stalled_s(self) -> float:
        """Seconds by which a run of the model exceeds what it may take; 0 while all is well."""
        return self._watch.stalled_s()

    async def encode(self, samples: Recording, sample_rate_hz: int, *, tenant: str) -> Reference:
        """What a recording is to a talker, in memory of the caller's own.

        A caller that is cancelled leaves the work to the others that wait for it, and to the cache.

        Args:
            samples: [n] mono, int16 or float32 in [-1, 1]; not to be changed before this returns.
            sample_rate_hz: any from 4 to 384 kHz.
            tenant: whose recording it is.

        Raises:
            InvalidRequest: the recording is too short or too long, or holds a value that is not finite.
            StageFailed: the model failed.
        """
        self._check(samples, sample_rate_hz)
        content = await asyncio.to_thread(content_of, samples, sample_rate_hz)
        key = ReferenceKey(tenant, self._model.facts.fingerprint, content)
        known = self._cache.get(key)
        if known is not None:
            self.hits += 1
            return known
        running = self._in_flight.get(key)
        if running is None:
            running = self._begin(key, _Clip(samples, sample_rate_hz))
        else:
            self.joined += 1
        return copy_of(await asyncio.shield(running))

    async def warm(self) -> None:
        """Encode a second of silence, so that the first request pays for no first use."""
        silence = np.zeros(self._model.facts.sample_rate_hz, np.float32)
        await self._turns.run(Urgency(now=self._clock()), _Clip(silence, self._model.facts.sample_rate_hz))

    async def close(self) -> None:
        """Cancel what waits, wait for what runs."""
        await self._turns.close()

    def _begin(self, key: ReferenceKey, clip: _Clip) -> asyncio.Future[Reference]:
        work: Future[Reference] = self._turns.submit(Urgency(now=self._clock()), clip)
        running = asyncio.wrap_future(work)
        self._in_flight[key] = running

        def done(future: asyncio.Future[Reference]) -> None:
            del self._in_flight[key]
            # Reading the exception also says that it was seen, should every waiter have left.
            if not future.cancelled() and future.exception() is None:
                self._cache.put(key, future.result())

        running.add_done_callback(done)
        return running

    def _check(self, samples: Recording, sample_rate_hz: int) -> None:
        if samples.ndim != 1 or samples.dtype not in (np.int16, np.float32):
            raise InvalidRequest(f"a recording is [samples] int16 or float32, not {samples.ndim}-D {samples.dtype}")
        lowest, highest = _RATES_HZ
        if not lowest <= sample_rate_hz <= highest:
            raise InvalidRequest(f"a recording has {lowest} to {highest} samples a second, not {sample_rate_hz}")
        facts, seconds = self._model.facts, len(samples) / sample_rate_hz
        too_short = len(samples) * facts.sample_rate_hz // sample_rate_hz < facts.min_samples
        if too_short or seconds > self._config.max_seconds:
            shortest = facts.min_samples / facts.sample_rate_hz
            raise InvalidRequest(
                f"the recording has {seconds:.3f} s; it must have {shortest:.3f} to {self._config.max_seconds:g} s"
            )
        if not np.isfinite(samples).all():
            raise InvalidRequest("the recording holds a value that is not finite")

    def _encode(self, clips: Sequence[_Clip]) -> Sequence[Reference | OmnistageError]:
        self.encoded += len(clips)
        rate_hz = self._model.facts.sample_rate_hz
        waves = [_prepared(clip, rate_hz) for clip in clips]
        passes = in_passes([len(wave) for wave in waves], int(self._config.pass_seconds * rate_hz))
        results: list[Reference | OmnistageError] = []
        for chosen in passes:
            results += self._pass(waves[chosen])
        return results

    def _pass(self, waves: Sequence[Samples]) -> Sequence[Reference | OmnistageError]:
        try:
            with self._watch.step():
                return self._model.encode(waves)
        except OmnistageError as error:
            # Which of them it was, only each alone can tell.
            return [error] if len(waves) == 1 else [result for wave in waves for result in self._pass([wave])]


def in_passes(lengths: Sequence[int], most: int) -> list[slice]:
    """Consecutive items whose lengths add up to no more than `most`; a longer one by itself."""
    passes: list[slice] = []
    total = 0
    for index, length in enumerate(lengths):
        if passes and total + length <= most:
            passes[-1] = slice(passes[-1].start, index + 1)
            total += length
        else:
            passes.append(slice(index, index + 1))
            total = length
    return passes


def _prepared(clip: _Clip, sample_rate_hz: int) -> Samples:
    """float32 at the model's rate."""
    samples = clip.samples
    wave = samples * _FULL_SCALE if samples.dtype == np.int16 else samples.astype(np.float32, copy=False)
    if clip.sample_rate_hz == sample_rate_hz:
        return wave
    resampled: Samples = soxr.resample(wave, clip.sample_rate_hz, sample_rate_hz)
    return resampled
