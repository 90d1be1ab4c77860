"""Listens to control messages and does what they ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from omnistage.contracts import Cancel, Drain, Forget, Ping, Redo
from omnistage.observability import get_logger
from omnistage.runtime.broken import Broken, read_control
from omnistage.transport import Bus, Message, Subscription

_log = get_logger(__name__)

_FAULTS_SHOWN = 16


@dataclass(frozen=True)
class ControlActions:
    """What a service does on each control message."""

    cancel: Callable[[str], Awaitable[None]]
    forget: Callable[[str], Awaitable[None]]
    redo: Callable[[str, str, int], None]
    ping: Callable[[], Awaitable[None]]
    drain: Callable[[], Awaitable[None]]


class ControlListener:
    """Subscriptions for everything that concerns this instance."""

    def __init__(
        self, bus: Bus, instance: str, actions: ControlActions, skipped: Callable[[], None] = lambda: None
    ) -> None:
        self._bus = bus
        self._instance = instance
        self._actions = actions
        self._skipped = skipped
        self._faults: set[str] = set()
        self._subscriptions: list[Subscription] = []
        self.unreadable = 0
        """Control messages that could not be decoded, dropped."""

    async def start(self) -> None:
        subjects = self._bus.subjects
        for subject in (subjects.ctl_requests(), subjects.ctl_instance(self._instance), subjects.ctl_everyone()):
            self._subscriptions.append(await self._bus.subscribe(subject, self._receive))

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()

    async def _receive(self, message: Message) -> None:
        try:
            control = read_control(message)
        except (msgspec.MsgspecError, Broken) as error:
            self._skip(message.subject, str(error))
            return
        match control:
            case Cancel(request_id=request_id):
                await self._actions.cancel(request_id)
            case Forget(request_id=request_id):
                await self._actions.forget(request_id)
            case Redo(request_id=request_id, edge=edge, seq=seq):
                self._actions.redo(request_id, edge, seq)
            case Ping():
                await self._actions.ping()
            case Drain(instance=instance) if instance == self._instance:
                await self._actions.drain()
            case _:
                return

    def _skip(self, subject: str, fault: str) -> None:
        """Count every message that is broken or of a later version; say of each kind only once that it came."""
        self.unreadable += 1
        self._skipped()
        if fault not in self._faults and len(self._faults) < _FAULTS_SHOWN:
            self._faults.add(fault)
            _log.warning("unreadable control message", subject=subject, fault=fault)
