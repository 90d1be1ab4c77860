"""The only place that wires the codec together."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from omnistage.config import EngineSpec
from omnistage.observability import Metrics
from omnistage.runtime.engines import Loaded, checked_settings
from omnistage.runtime.service import Service
from omnistage_codec import __version__
from omnistage_codec.engine import DecodeConfig, DecodeEngine
from omnistage_codec.handlers import HANDLERS
from omnistage_codec.models import load_model


class EngineSettings(BaseModel):
    """`settings` of a codec engine in models.yaml.

    Attributes:
        threads: decoding threads of an instance.
        pace: samples of a request leave at most this many times faster than they sound; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(1, ge=1, le=64)
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


async def load(key: str, spec: EngineSpec, _metrics: Metrics) -> Loaded:
    """Build the engine of a models file's entry."""
    settings = checked_settings(EngineSettings, key, spec)
    model = load_model(spec.engine)
    config = DecodeConfig(slots=spec.slots, threads=settings.threads, pace=settings.pace)
    engine: DecodeEngine = DecodeEngine(model, config)
    facts = model.facts
    return Loaded(
        engine,
        gauges=lambda: {"sample_rate_hz": facts.sample_rate_hz, "frame_rate_hz": facts.frame_rate_hz},
        stalled_s=lambda: engine.stalled_s,
    )


def service() -> Service:
    """The codec, ready to be run."""
    return Service(name="codec", version=__version__, handlers=HANDLERS, load=load)
