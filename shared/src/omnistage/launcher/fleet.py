"""What the instances say of themselves: their presences, as they come over the bus."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from omnistage.contracts import Ping, Presence, decode_control, encode
from omnistage.subjects import Subjects
from omnistage.transport import Bus, Message

_GONE_AFTER_S = 5.0
"""Instances announce themselves every second."""


@dataclass(frozen=True)
class _Heard:
    presence: Presence
    at: float


class Fleet:
    """The instances that have announced themselves lately, by name."""

    def __init__(self, bus: Bus, namespace: str) -> None:
        self._bus = bus
        self._subjects = Subjects(namespace)
        self._heard: dict[str, _Heard] = {}

    async def watch(self) -> None:
        """Listen from now on, and ask everyone to speak up. Raises BusUnavailable."""
        await self._bus.subscribe(self._subjects.presences(), self._hear)
        await self._bus.send(self._subjects.ctl_everyone(), encode(Ping()))

    def get(self, instance: str) -> Presence | None:
        """What an instance said last; None if that is too long ago."""
        heard = self._heard.get(instance)
        if heard is None or time.monotonic() - heard.at > _GONE_AFTER_S:
            return None
        return heard.presence

    def last_running(self, instance: str) -> tuple[str, ...]:
        """The requests that an instance said last that it holds, however long ago."""
        heard = self._heard.get(instance)
        return heard.presence.running if heard is not None else ()

    def forget(self, instance: str) -> None:
        """The instance is known to be gone."""
        self._heard.pop(instance, None)

    async def _hear(self, message: Message) -> None:
        try:
            presence = decode_control(message.body)
        except msgspec.MsgspecError:
            return  # of a newer contract: nothing here can be said about it
        if isinstance(presence, Presence):
            self._heard[presence.instance] = _Heard(presence, time.monotonic())
