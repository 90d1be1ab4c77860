"""The only place that wires the codec together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from omnistage.config import EngineSpec, locate_checkpoint
from omnistage.errors import ConfigError
from omnistage.observability import Metrics
from omnistage.runtime.engines import Loaded, checked_settings
from omnistage.runtime.service import Service
from omnistage_codec import __version__
from omnistage_codec.engine import (
    BufferedGrowth,
    Coalescing,
    CodecEngine,
    DecodeConfig,
    DecodeEngine,
    ReferenceConfig,
    ReferenceEngine,
)
from omnistage_codec.handlers import HANDLERS
from omnistage_codec.models import LoadedModels, ModelOptions, load_models

_TARGET = 4
"""Steps that are worth a pass at once, where nobody says otherwise."""


class EngineSettings(BaseModel):
    """`settings` of a codec engine in models.yaml.

    Attributes:
        threads: decoding threads of an instance.
        pace: samples of a request leave at most this many times faster than they sound; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(1, ge=1, le=64)
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


class NetworkSettings(EngineSettings):
    """`settings` of codec engines that run a network over codec tokens.

    Attributes:
        dtype: element type that it computes in.
        batch_invariant: give the same bits whatever is decoded together and however frames arrive; slower.
        references: whether recordings are encoded as well; not set: if the checkpoint is made for cloning.
        step_frames: most frames of a request in one pass.
        first_frames: frames of a request's first step.
        max_frames: most frames of any step.
        coalesce_target: requests whose steps are worth a pass at once, at most `slots`; fewer live ones never wait.
        coalesce_window_ms: how long the first of them waits for others.
        reference_max_s: the longest recording, in seconds.
        reference_cache_mb: encoded recordings that are kept, in MiB.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_invariant: bool = False
    references: bool | None = None
    step_frames: int = Field(32, ge=1, le=1024)
    first_frames: int = Field(1, ge=1, le=64)
    max_frames: int = Field(25, ge=1, le=1024)
    coalesce_target: int | None = Field(None, ge=1, le=4096)
    coalesce_window_ms: float = Field(4.0, ge=0, le=1000, allow_inf_nan=False)
    reference_max_s: float = Field(60.0, gt=0, le=600, allow_inf_nan=False)
    reference_cache_mb: int = Field(64, ge=0, le=65536)


async def load(key: str, spec: EngineSpec, _metrics: Metrics) -> Loaded:
    """Build the engine of a models file's entry."""
    if spec.engine == "qwen3_tts":
        engine = await _network(key, spec, checked_settings(NetworkSettings, key, spec))
    else:
        settings = checked_settings(EngineSettings, key, spec)
        config = DecodeConfig(slots=spec.slots, threads=settings.threads, pace=settings.pace)
        engine = CodecEngine(DecodeEngine(load_models(spec.engine).wave, config))
    facts = engine.decoder.facts()
    return Loaded(
        engine,
        gauges=lambda: {"sample_rate_hz": facts.sample_rate_hz, "frame_rate_hz": facts.frame_rate_hz},
        stalled_s=lambda: engine.stalled_s,
    )


async def _network(key: str, spec: EngineSpec, settings: NetworkSettings) -> CodecEngine:
    models = await asyncio.to_thread(partial(_load_network, key, spec, settings))
    growth = BufferedGrowth(
        frame_rate_hz=models.wave.facts.frame_rate_hz,
        first_frames=settings.first_frames,
        max_frames=settings.max_frames,
    )
    coalescing = Coalescing(
        target=settings.coalesce_target or min(_TARGET, spec.slots),
        window_s=settings.coalesce_window_ms / 1000,
        max_batch=spec.slots,
    )
    config = DecodeConfig(
        slots=spec.slots, threads=settings.threads, pace=settings.pace, growth=growth, coalescing=coalescing
    )
    decoder = DecodeEngine(models.wave, config)
    if models.references is None:
        return CodecEngine(decoder)
    limits = ReferenceConfig(max_seconds=settings.reference_max_s, cache_bytes=settings.reference_cache_mb << 20)
    return CodecEngine(decoder, ReferenceEngine(models.references, limits))


def _load_network(key: str, spec: EngineSpec, settings: NetworkSettings) -> LoadedModels:
    if spec.checkpoint is None:
        raise ConfigError(f"engines.{key}: a {spec.engine} codec engine needs a checkpoint")
    if settings.coalesce_target is not None and settings.coalesce_target > spec.slots:
        raise ConfigError(
            f"engines.{key}.settings.coalesce_target: {settings.coalesce_target} is more than the {spec.slots} slots"
        )
    if len(spec.devices) != 1:
        raise ConfigError(f"engines.{key}.devices: a {spec.engine} codec engine takes one, not {list(spec.devices)}")
    options = ModelOptions(
        checkpoint=locate_checkpoint(spec.checkpoint),
        device=spec.devices[0],
        dtype=settings.dtype,
        batch_invariant=settings.batch_invariant,
        references=settings.references,
        step_frames=settings.step_frames,
    )
    return load_models(spec.engine, options)


def service() -> Service:
    """The codec, ready to be run."""
    return Service(name="codec", version=__version__, handlers=HANDLERS, load=load)
