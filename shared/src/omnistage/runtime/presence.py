"""Says that this instance lives: periodically, at once when something changes, and when asked."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable

from omnistage.contracts import CONTRACT_VERSION, EngineStatus, Presence, encode
from omnistage.contracts.control import ServiceState
from omnistage.errors import BusError
from omnistage.transport import Bus

PERIOD_S = 1.0
_SETTLE_S = 0.02
"""Changes within this time go out as one message."""


class Announcer:
    """Sends this instance's presence."""

    def __init__(
        self,
        bus: Bus,
        *,
        service: str,
        instance: str,
        version: str,
        locality: str = "",
        engines: Callable[[], Iterable[EngineStatus]] = tuple,
        running: Callable[[], Iterable[str]] = tuple,
        period_s: float = PERIOD_S,
    ) -> None:
        self.state: ServiceState = "starting"
        self._bus = bus
        self._service = service
        self._instance = instance
        self._version = version
        self._locality = locality
        self._engines = engines
        self._running = running
        self._period_s = period_s
        self._started = time.time()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something that presence tells has changed."""
        self._changed.set()

    def presence(self) -> Presence:
        return Presence(
            service=self._service,
            instance=self._instance,
            state=self.state,
            version=self._version,
            contract=CONTRACT_VERSION,
            pid=os.getpid(),
            host=socket.gethostname(),
            started=self._started,
            locality=self._locality,
            engines=tuple(self._engines()),
            running=tuple(self._running()),
        )

    async def announce(self) -> None:
        """Send it now. A broker that is away is no error: the next period tries again."""
        try:
            await self._bus.send(self._bus.subjects.presence(self._service, self._instance), encode(self.presence()))
        except BusError:
            return

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            await self.announce()
            self._changed.clear()
            try:
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                continue
