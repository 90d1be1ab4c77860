"""The only place that wires the talker together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from omnistage.config import EngineSpec, locate_checkpoint
from omnistage.contracts import SpeechAbilities
from omnistage.errors import ConfigError
from omnistage.observability import Metrics, names
from omnistage.runtime.engines import Loaded, checked_settings
from omnistage.runtime.service import Service
from omnistage_talker import __version__
from omnistage_talker.engine import GroupSizes, SpeechConfig, SpeechEngine
from omnistage_talker.engine.guard import RunawayLimits
from omnistage_talker.handlers import HANDLERS
from omnistage_talker.models import FRAME_FAMILIES, FrameModelOptions, SpeechFacts, load_model

if TYPE_CHECKING:
    from omnistage.ar.counters import StepReport


class EngineSettings(BaseModel):
    """`settings` of talker engines that speak clause by clause.

    Attributes:
        threads: threads that run the model, each for another request.
        pace: frames of a request leave at most this many times faster than they sound; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(1, ge=1, le=64)
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


class FrameEngineSettings(BaseModel):
    """`settings` of talker engines that make frames one after the other.

    Attributes:
        dtype: element type that the network computes in.
        context: positions that a request's prompt and frames may have together; a frame is one, 80 ms of sound.
        kv_tokens: positions that the key-value cache holds, all requests together.
        prefill_tokens: prompt positions per step when nobody speaks.
        chunk_tokens: prompt positions per step beside running speech.
        batch_invariant: a request's codes do not depend on what else runs, bit for bit.
        runaway_guard: whether speech that goes on and on is ended.
        frames_per_token: frames that a token of the text may take.
        runaway_retry: whether runaway speech that nobody has heard is tried once more with another seed.
        max_chunk_frames: frames that are sent together at most; the first ones are sent one by one.
        pace: frames of a request leave at most this many times faster than they sound; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    context: int = Field(4096, ge=64)
    kv_tokens: int = Field(16384, ge=256)
    prefill_tokens: int = Field(512, ge=1)
    chunk_tokens: int = Field(128, ge=1)
    batch_invariant: bool = True
    runaway_guard: bool = True
    frames_per_token: float = Field(12.5, gt=0, allow_inf_nan=False)
    runaway_retry: bool = True
    max_chunk_frames: int = Field(8, ge=1, le=256)
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


async def load(key: str, spec: EngineSpec, metrics: Metrics) -> Loaded:
    """Build the engine of a models file's entry."""
    if spec.checkpoint is None:
        raise ConfigError(f"engines.{key}: a talker engine needs a checkpoint")
    checkpoint = locate_checkpoint(spec.checkpoint)
    if spec.engine in FRAME_FAMILIES:
        return await _load_frames(key, spec, checkpoint, metrics)
    settings = checked_settings(EngineSettings, key, spec)
    model = await asyncio.to_thread(load_model, spec.engine, checkpoint)
    engine = SpeechEngine(model, SpeechConfig(slots=spec.slots, threads=settings.threads, pace=settings.pace))
    return Loaded(
        engine,
        voices=model.facts.voices,
        gauges=partial(_gauges, model.facts),
        speech=_abilities(model.facts),
        stalled_s=lambda: engine.stalled_s,
    )


async def _load_frames(key: str, spec: EngineSpec, checkpoint: Path, metrics: Metrics) -> Loaded:
    # These need torch, which other engines do without.
    from omnistage_talker.engine.frames import FrameConfig, FrameEngine

    settings = checked_settings(FrameEngineSettings, key, spec)
    context = min(settings.context, settings.kv_tokens)
    options = FrameModelOptions(device=spec.devices[0], dtype=settings.dtype, context=context)
    model = await asyncio.to_thread(FRAME_FAMILIES[spec.engine], checkpoint, options)
    config = FrameConfig(
        slots=spec.slots,
        kv_tokens=settings.kv_tokens,
        prefill_tokens=settings.prefill_tokens,
        chunk_tokens=settings.chunk_tokens,
        batch_invariant=settings.batch_invariant,
        groups=GroupSizes(first_frames=1, factor=2.0, max_frames=settings.max_chunk_frames),
        guard=RunawayLimits(frames_per_token=settings.frames_per_token) if settings.runaway_guard else None,
        retry=settings.runaway_retry,
        pace=settings.pace,
    )

    def on_step(report: StepReport) -> None:
        metrics.observe(names.STEP_SECONDS, report.duration_s, model=key)
        metrics.observe(names.BATCH_SIZE, report.rows, model=key)
        for state, blocks in (
            ("used", report.blocks_used),
            ("cached", report.blocks_cached),
            ("free", report.blocks_free),
        ):
            metrics.set(names.CACHE_BLOCKS, blocks, model=key, state=state)

    engine = await asyncio.to_thread(partial(FrameEngine, model, config, on_step=on_step))
    facts = model.facts
    return Loaded(
        engine,
        voices=facts.voices,
        gauges=partial(_gauges, facts),
        speech=_abilities(facts),
        stalled_s=lambda: engine.stalled_s,
    )


def _gauges(facts: SpeechFacts) -> Mapping[str, float]:
    slowest, fastest = facts.native_speed_range
    return {"speed_min": slowest, "speed_max": fastest, "frame_rate_hz": facts.frame_rate_hz}


def _abilities(facts: SpeechFacts) -> SpeechAbilities:
    return SpeechAbilities(tasks=facts.tasks, languages=facts.languages, accepts=facts.accepts)


def service() -> Service:
    """The talker, ready to be run."""
    return Service(name="talker", version=__version__, handlers=HANDLERS, load=load)
