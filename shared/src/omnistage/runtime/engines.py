"""The engines of an instance: loading them, counting their slots, saying how they are."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from omnistage.config import EngineSpec
from omnistage.contracts import EngineStatus, SpeechAbilities
from omnistage.errors import ConfigError, OmnistageError
from omnistage.observability import Metrics, get_logger
from omnistage.runtime.checkpoints import fetched
from omnistage.runtime.slots import Slots

_log = get_logger(__name__)

_SMOOTHING = 0.2
"""Weight of the newest request in the moving average of service time."""


class Engine(Protocol):
    """What the runtime asks of an engine; everything else is between the engine and its service's handlers."""

    async def warm(self) -> None:
        """Run what makes the first request as fast as the hundredth."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """An engine as its service's bootstrap hands it over.

    Attributes:
        engine: what handlers find as `context.engine`.
        voices: voices that it speaks with; empty for engines that do not speak.
        gauges: numbers that describe it, e.g. "speed_min"; announced to gateways.
        speech: what it can be asked for, if it speaks; announced to gateways.
        media: what it reads beside text, as `EngineStatus.media` has it; announced to gateways.
        stalled_s: seconds by which its current step exceeds what a step may take; 0 while all is well.
    """

    engine: Engine
    voices: tuple[str, ...] = ()
    gauges: Callable[[], Mapping[str, float]] = dict
    speech: SpeechAbilities | None = None
    media: tuple[str, ...] = ()
    stalled_s: Callable[[], float] = float


Load = Callable[[str, EngineSpec, Metrics], Awaitable[Loaded]]
"""Builds the engine of a key; blocking work belongs in a thread."""

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def checked_settings(kind: type[SettingsT], key: str, spec: EngineSpec) -> SettingsT:
    """An engine's `settings` of the models file, checked. Raises ConfigError naming the setting at fault."""
    try:
        return kind.model_validate(spec.settings)
    except ValidationError as error:
        faults = "; ".join(
            f"engines.{key}.settings.{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ConfigError(faults) from error


@dataclass
class HostedEngine:
    """An engine of this instance and who uses it."""

    key: str
    spec: EngineSpec
    loaded: Loaded | None = None
    detail: str = "waiting to load"
    running: dict[str, float] = field(default_factory=dict)
    queue: int = 0
    service_s: float = 0.0
    slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.spec.slots)

    async def load(self, load: Load, metrics: Metrics) -> None:
        """Load and warm the engine. What goes wrong is kept as `detail` and raised."""
        began = time.monotonic()
        self.detail = f"loading {self.spec.checkpoint or self.spec.engine}"
        try:
            loaded = await load(self.key, await fetched(self.key, self.spec, self._say), metrics)
            self.detail = "warming up"
            await loaded.engine.warm()
        except OmnistageError as error:
            self.detail = f"failed: {error.message}"
            raise
        self.loaded = loaded
        self.detail = ""
        _log.info("engine ready", engine=self.key, seconds=round(time.monotonic() - began, 3))

    def _say(self, detail: str) -> None:
        self.detail = detail

    @property
    def ready(self) -> bool:
        return self.loaded is not None

    async def close(self) -> None:
        """Close the engine, if it was loaded."""
        if self.loaded is not None:
            await self.loaded.engine.close()

    @property
    def stalled_s(self) -> float:
        """See `Loaded.stalled_s`."""
        return self.loaded.stalled_s() if self.loaded else 0.0

    def began(self, request_id: str) -> None:
        self.running[request_id] = time.monotonic()

    def ended(self, request_id: str) -> None:
        took = time.monotonic() - self.running.pop(request_id, time.monotonic())
        self.service_s = took if self.service_s == 0 else (1 - _SMOOTHING) * self.service_s + _SMOOTHING * took

    def status(self) -> EngineStatus:
        """What presence says about it."""
        return EngineStatus(
            engine=self.key,
            ready=self.ready,
            detail=self.detail,
            slots=self.spec.slots,
            running=tuple(self.running),
            queue=self.queue,
            service_s=round(self.service_s, 4),
            voices=self.loaded.voices if self.loaded else (),
            facts=dict(self.loaded.gauges()) if self.loaded else {},
            speech=self.loaded.speech if self.loaded else None,
            media=self.loaded.media if self.loaded else (),
        )


def engine_of(hosted: HostedEngine) -> Any:
    """The loaded engine. An unloaded one is a bug of the caller: nothing is claimed before it is ready."""
    assert hosted.loaded is not None
    return hosted.loaded.engine
