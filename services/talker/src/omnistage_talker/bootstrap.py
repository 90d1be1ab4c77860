"""The only place that wires the talker together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from omnistage.config import EngineSpec, locate_checkpoint
from omnistage.errors import ConfigError
from omnistage.observability import Metrics
from omnistage.runtime.engines import Loaded, checked_settings
from omnistage.runtime.service import Service
from omnistage_talker import __version__
from omnistage_talker.engine import SpeechConfig, SpeechEngine
from omnistage_talker.handlers import HANDLERS
from omnistage_talker.models import load_model


class EngineSettings(BaseModel):
    """`settings` of a talker engine in models.yaml.

    Attributes:
        threads: threads that run the model, each for another request.
        pace: frames of a request leave at most this many times faster than they sound; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(1, ge=1, le=64)
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


async def load(key: str, spec: EngineSpec, _metrics: Metrics) -> Loaded:
    """Build the engine of a models file's entry."""
    settings = checked_settings(EngineSettings, key, spec)
    if spec.checkpoint is None:
        raise ConfigError(f"engines.{key}: a talker engine needs a checkpoint")
    model = await asyncio.to_thread(load_model, spec.engine, locate_checkpoint(spec.checkpoint))
    slowest, fastest = model.facts.native_speed_range

    def gauges() -> Mapping[str, float]:
        return {"speed_min": slowest, "speed_max": fastest, "frame_rate_hz": model.facts.frame_rate_hz}

    engine = SpeechEngine(model, SpeechConfig(slots=spec.slots, threads=settings.threads, pace=settings.pace))
    return Loaded(engine, voices=model.facts.voices, gauges=gauges, stalled_s=lambda: engine.stalled_s)


def service() -> Service:
    """The talker, ready to be run."""
    return Service(name="talker", version=__version__, handlers=HANDLERS, load=load)
