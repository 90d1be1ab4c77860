"""The only place that wires the thinker together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from omnistage.ar.counters import StepReport
from omnistage.config import EngineSpec, locate_checkpoint
from omnistage.errors import ConfigError
from omnistage.observability import Metrics, names
from omnistage.runtime.engines import Loaded, checked_settings
from omnistage.runtime.service import Service
from omnistage_thinker import __version__
from omnistage_thinker.engine import TextEngine, TextEngineSettings
from omnistage_thinker.engines import ENGINES
from omnistage_thinker.handlers import HANDLERS


class EngineSettings(BaseModel):
    """`settings` of a thinker's torch engine in models.yaml; the defaults are those of `TextEngineSettings`.

    Attributes:
        dtype: element type that the network computes in.
        context: tokens of prompt and answer together.
        kv_tokens: tokens that the key-value cache holds, all requests together.
        prefill_tokens: prompt tokens per step when nothing decodes.
        chunk_tokens: prompt tokens per step beside running streams.
        prefix_cache: whether equal beginnings of prompts are computed once.
        batch_invariant: a request's numbers do not depend on what else runs, bit for bit.
        pace: tokens per second that a request gets at most; not set: as soon as they exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    context: int | None = Field(None, ge=16)
    kv_tokens: int = Field(16384, ge=256)
    prefill_tokens: int = Field(256, ge=1)
    chunk_tokens: int = Field(64, ge=1)
    prefix_cache: bool = True
    batch_invariant: bool = True
    pace: float | None = Field(None, gt=0, allow_inf_nan=False)


async def load(key: str, spec: EngineSpec, metrics: Metrics) -> Loaded:
    """Build the engine of a models file's entry."""
    if spec.engine not in ENGINES:
        raise ConfigError(f"thinker engine {spec.engine!r} does not exist; there are: {', '.join(ENGINES)}")
    if spec.checkpoint is None:
        raise ConfigError(f"engines.{key}: a thinker engine needs a checkpoint")
    chosen = checked_settings(EngineSettings, key, spec)
    settings = TextEngineSettings(slots=spec.slots, device=spec.devices[0], **chosen.model_dump())

    def on_step(report: StepReport) -> None:
        metrics.observe(names.STEP_SECONDS, report.duration_s, model=key)
        metrics.observe(names.BATCH_SIZE, report.rows, model=key)
        for state, blocks in (
            ("used", report.blocks_used),
            ("cached", report.blocks_cached),
            ("free", report.blocks_free),
        ):
            metrics.set(names.CACHE_BLOCKS, blocks, model=key, state=state)

    path = locate_checkpoint(spec.checkpoint)
    engine = await asyncio.to_thread(partial(TextEngine.load, path, settings, on_step=on_step))
    return Loaded(engine, gauges=lambda: {"context_tokens": float(engine.context)}, stalled_s=lambda: engine.stalled_s)


def service() -> Service:
    """The thinker, ready to be run."""
    return Service(name="thinker", version=__version__, handlers=HANDLERS, load=load)
