"""The engines of an instance: loading them, counting their slots, saying how they are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from omnistage.config import EngineSpec
from omnistage.contracts import EngineStatus
from omnistage.errors import OmnistageError

_log = logging.getLogger(__name__)

_SMOOTHING = 0.2
"""Weight of the newest request in the moving average of service time."""


class Engine(Protocol):
    """What the runtime asks of an engine; everything else is between the engine and its service's handlers."""

    async def warm(self) -> None:
        """Run what makes the first request as fast as the hundredth."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Gauges that describe the engine, e.g. "speed_min"; they are announced and exported."""
        ...

    @property
    def voices(self) -> tuple[str, ...]:
        """Voices that it speaks with; empty for engines that do not speak."""
        ...

    async def close(self) -> None: ...


Load = Callable[[str, EngineSpec], Awaitable[Engine]]
"""Builds the engine of a key; blocking work belongs in a thread."""


@dataclass
class HostedEngine:
    """An engine of this instance and who uses it."""

    key: str
    spec: EngineSpec
    engine: Engine | None = None
    detail: str = "waiting to load"
    running: dict[str, float] = field(default_factory=dict)
    queue: int = 0
    service_s: float = 0.0
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.spec.slots)

    async def load(self, load: Load) -> None:
        """Load and warm the engine. What goes wrong is kept as `detail` and raised."""
        began = time.monotonic()
        self.detail = f"loading {self.spec.checkpoint or self.spec.engine}"
        try:
            engine = await load(self.key, self.spec)
            self.detail = "warming up"
            await engine.warm()
        except OmnistageError as error:
            self.detail = f"failed: {error.message}"
            raise
        self.engine = engine
        self.detail = ""
        _log.info("engine ready", extra={"engine": self.key, "seconds": round(time.monotonic() - began, 3)})

    def began(self, request_id: str) -> None:
        self.running[request_id] = time.monotonic()

    def ended(self, request_id: str) -> None:
        took = time.monotonic() - self.running.pop(request_id, time.monotonic())
        self.service_s = took if self.service_s == 0 else (1 - _SMOOTHING) * self.service_s + _SMOOTHING * took

    def status(self) -> EngineStatus:
        """What presence says about it."""
        return EngineStatus(
            engine=self.key,
            ready=self.engine is not None,
            detail=self.detail,
            slots=self.spec.slots,
            running=tuple(self.running),
            queue=self.queue,
            service_s=round(self.service_s, 4),
            voices=self.engine.voices if self.engine is not None else (),
            facts=dict(self.engine.facts()) if self.engine is not None else {},
        )


def engine_of(hosted: HostedEngine) -> Any:
    """The loaded engine. An unloaded one is a bug of the caller: nothing is claimed before it is ready."""
    assert hosted.engine is not None
    return hosted.engine
