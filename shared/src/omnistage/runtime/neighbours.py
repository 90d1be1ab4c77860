"""Who else is there: whether all instances of an engine share this instance's memory, and whether anybody is heard."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from omnistage.contracts import Presence
from omnistage.runtime.broken import Broken, read_presence
from omnistage.transport import Bus, Message, Subscription

GONE_AFTER_S = 3.5
"""An instance that was silent for longer than three periods of presence is taken for gone."""

DEAF_S = 1.75
"""If nobody at all was heard for so long (this instance's own presence comes every second), the line was cut."""

SILENCE_S = 1.5
"""Somebody's presence, be it our own, comes every second: after more than that the broker, or we, stood still."""
RECOVERY_S = 1.0
"""So long after a silence everybody has been heard again."""

GATEWAY = "gateway"


class Neighbours:
    """Localities of the instances that answer for each engine (and of the gateways), learned from their presence."""

    def __init__(
        self,
        bus: Bus,
        locality: str,
        clock: Callable[[], float] = time.monotonic,
        skipped: Callable[[], None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._locality = locality
        self._clock = clock
        self._skipped = skipped
        self._seen: dict[str, dict[str, tuple[str, float]]] = {}
        self._last_heard = clock()
        self._heard: float | None = None
        self._back = float("-inf")
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(self._bus.subjects.presences(), self._receive)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()

    def note(self, presence: Presence) -> None:
        """An instance told where it is."""
        self._excuse_silence()
        now = self._clock()
        if self._heard is not None and now - self._heard > SILENCE_S:
            self._back = now
        self._heard = now
        readers = [GATEWAY] if presence.service == GATEWAY else [status.engine for status in presence.engines]
        for reader in readers:
            self._seen.setdefault(reader, {})[presence.instance] = (presence.locality, now)

    def silent_lately(self) -> bool:
        """Whether nobody at all could be heard for a while up to now, or shortly before."""
        if self._heard is None:
            return False
        now = self._clock()
        return now - self._heard > SILENCE_S or now - self._back < RECOVERY_S

    def share_memory(self, engine: str) -> bool:
        """Whether every instance that may read what is sent to this engine reaches our shared memory.

        While none is known the answer is yes: a block out of its reader's reach is an error that names itself. While
        nobody at all is heard, it is this instance that is cut off, and whoever was there still is.
        """
        if not self._locality:
            return True
        now = min(self._clock(), self._last_heard + DEAF_S)
        alive = {
            instance: (locality, seen)
            for instance, (locality, seen) in self._seen.get(engine, {}).items()
            if now - seen < GONE_AFTER_S
        }
        self._seen[engine] = alive
        return all(locality == self._locality for locality, _ in alive.values())

    def _excuse_silence(self) -> None:
        """Nobody is to blame for silence while this instance heard nothing."""
        now = self._clock()
        deaf_s = now - self._last_heard
        self._last_heard = now
        if deaf_s > DEAF_S:
            self._seen = {
                reader: {instance: (locality, seen + deaf_s) for instance, (locality, seen) in instances.items()}
                for reader, instances in self._seen.items()
            }

    async def _receive(self, message: Message) -> None:
        try:
            presence = read_presence(message)
        except (msgspec.MsgspecError, Broken):
            self._skipped()
            return
        if presence is not None:
            self.note(presence)
