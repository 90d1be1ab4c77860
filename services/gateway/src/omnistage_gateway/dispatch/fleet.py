"""Listens to presences and says which engines there are, to whoever waits for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from omnistage.config import ModelsFile, ModelSpec
from omnistage.contracts import Ping, encode
from omnistage.errors import BusError
from omnistage.observability import get_logger
from omnistage.runtime.broken import Broken, read_presence
from omnistage.transport import Bus, Message, Subscription
from omnistage_gateway.dispatch.credits import Wanted
from omnistage_gateway.dispatch.fleet_table import EngineView, FleetTable

_log = get_logger(__name__)


class Fleet:
    """The living instances and what they offer.

    Args:
        bus: where presences come from.
        models: what is to be served.
        instance: this gateway's own name.
        clock: monotonic seconds.
        skipped: told of each presence that is broken or of a later version.
    """

    def __init__(
        self,
        bus: Bus,
        models: ModelsFile,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        skipped: Callable[[], None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._models = models
        self._clock = clock
        self._instance = instance
        self._skipped = skipped
        self._table = FleetTable(clock, instance)
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen, and ask everybody to speak up.

        Raises:
            BusUnavailable: there is no broker.
        """
        self._subscription = await self._bus.subscribe(self._bus.subjects.presences(), self._hear)
        self._bus.on_reconnect(self._ask)
        await self._bus.send(self._bus.subjects.ctl_everyone(), encode(Ping()))

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call it whenever what is ready changes."""
        self._listeners.append(listener)

    async def wait_changed(self) -> None:
        """Wait for the next change of what is ready."""
        await self._changed.wait()

    @property
    def instance(self) -> str:
        """This gateway's own name."""
        return self._instance

    @property
    def table(self) -> FleetTable:
        return self._table

    def engine(self, key: str) -> EngineView:
        """What there is of an engine."""
        return self._table.engine(key)

    def capacity(self, engine: str) -> int:
        """Slots of an engine that this gateway may fill; 0 while no instance is ready."""
        return self._table.share(engine)

    def wants(self, gateway: str, wanted: Wanted) -> None:
        """What a gateway wants, this one or another, decides over its part of the slots."""
        changed = self._table.wants(gateway, wanted)
        # What others have given up may be used a while later, which is no change of anything.
        self._tell(changed or gateway == self._instance)

    def service_s(self, engine: str) -> float:
        """Mean seconds that a request holds a slot of an engine; 0 if unknown."""
        return self._table.engine(engine).service_s

    def missing(self, engines: Iterable[str]) -> str:
        """Which of these engines are ready nowhere, and why; empty if all are."""
        return "; ".join(self._describe(key) for key in engines if not self._table.engine(key).ready)

    def too_old(self, engines: Iterable[str], contract: int) -> str:
        """Which of these engines have ready instances that do not speak a contract version yet; empty if none has."""
        views = [(key, self._table.engine(key)) for key in engines]
        return "; ".join(
            f"{self._name(key)}: an instance speaks contract 1.{view.contract}"
            for key, view in views
            if view.ready and view.contract < contract
        )

    def offered(self) -> Mapping[str, ModelSpec]:
        """Models of the models file whose engines are all ready somewhere."""
        return {
            key: spec
            for key, spec in self._models.models.items()
            if all(self._table.engine(engine).ready for engine in spec.nodes.values())
        }

    def ready(self) -> tuple[bool, str]:
        """Whether every model is offered, and if not, what is missing."""
        offered = self.offered()
        waiting = [key for key in self._models.models if key not in offered]
        if not waiting:
            return True, ""
        engines = dict.fromkeys(engine for key in waiting for engine in self._models.models[key].nodes.values())
        return False, f"not ready: {', '.join(waiting)} ({self.missing(engines)})"

    def _describe(self, key: str) -> str:
        return f"{self._name(key)}: {self._table.engine(key).detail or 'no instance'}"

    def _name(self, key: str) -> str:
        spec = self._models.engines.get(key)
        return f"engine {key!r} of the {spec.service}" if spec is not None else f"engine {key!r}"

    async def _ask(self) -> None:
        try:
            await self._bus.send(self._bus.subjects.ctl_everyone(), encode(Ping()))
        except BusError as error:
            # Presences come every second anyway; the ping only saves that second.
            _log.warning("cannot_ping", code=error.code)

    async def _hear(self, message: Message) -> None:
        try:
            presence = read_presence(message)
        except (msgspec.MsgspecError, Broken) as error:
            self._skipped()
            _log.debug("unreadable_presence", subject=message.subject, error=type(error).__name__)
            return
        if presence is not None:
            self._tell(self._table.heard(presence))
            self._watch()

    def _expire(self) -> None:
        self._timer = None
        self._tell(self._table.expire())
        self._watch()

    def _watch(self) -> None:
        """Keep one timer that fires when the next silent instance is to be dropped."""
        expiry = self._table.next_expiry()
        if expiry is not None and self._timer is None and self._subscription is not None:
            delay = max(0.0, expiry - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _tell(self, changed: bool) -> None:
        if not changed:
            return
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()
