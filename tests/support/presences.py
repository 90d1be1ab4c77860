"""What the instances of a running system say of themselves, as it comes over the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnistage.contracts import Ping, Presence, decode_control, encode
from omnistage.transport import Bus, Message


class Presences:
    """The newest presence of each instance."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, Presence]] = {}

    async def hear(self, message: Message) -> None:
        presence = decode_control(message.body)
        if isinstance(presence, Presence):
            self._heard[presence.instance] = (time.monotonic(), presence)

    def forget(self, instance: str) -> None:
        """It was killed: what it said is over."""
        self._heard.pop(instance, None)

    def ready(self, service: str, *, within_s: float = 3.0) -> list[Presence]:
        """The instances of a service whose engines answer."""
        oldest = time.monotonic() - within_s
        return [
            presence
            for at, presence in self._heard.values()
            if at > oldest and presence.service == service and presence.state == "ready"
            if presence.engines and all(engine.ready for engine in presence.engines)
        ]

    def ready_gateways(self, *, within_s: float = 3.0) -> list[Presence]:
        """The gateways that serve."""
        oldest = time.monotonic() - within_s
        return [
            presence
            for at, presence in self._heard.values()
            if at > oldest and presence.service == "gateway" and presence.state == "ready"
        ]

    def holders(self, request_id: str) -> dict[str, Presence]:
        """Service -> the instance in whose slot the request is."""
        return {
            presence.service: presence
            for _, presence in self._heard.values()
            if any(request_id in engine.running for engine in presence.engines)
        }

    async def wait_ready(self, service: str, count: int, timeout_s: float = 60.0) -> list[Presence]:
        """Until so many instances of a service answer."""
        async with asyncio.timeout(timeout_s):
            while len(ready := self.ready(service)) < count:
                await asyncio.sleep(0.05)
        return ready


@asynccontextmanager
async def watching(bus: Bus) -> AsyncIterator[Presences]:
    """Listen from now on, and ask everyone to speak up."""
    presences = Presences()
    subscription = await bus.subscribe(bus.subjects.presences(), presences.hear)
    await bus.send(bus.subjects.ctl_everyone(), encode(Ping()))
    try:
        yield presences
    finally:
        await subscription.close()
