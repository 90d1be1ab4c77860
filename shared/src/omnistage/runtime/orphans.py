"""Requests whose gateway has died: whoever runs one notices, and takes it out of the whole system.

Nobody waits for the answer of an interactive request once the gateway that accepted it is gone. Every stage instance
watches the gateways of what it runs; several may clear up the same request, every step may be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from omnistage.contracts import Cancel, Ping, Presence, encode
from omnistage.errors import OmnistageError
from omnistage.observability import get_logger
from omnistage.pipelines import GATEWAY
from omnistage.runtime.broken import Broken, read_presence
from omnistage.transport import Bus, KeyValue, Message

_log = get_logger(__name__)

SILENT_S = 1.5
"""A gateway that was not heard for so long is gone; it speaks every half second."""
SUSPECT_S = 1.0
"""A gateway that was not heard for so long is asked whether it lives."""
ANSWER_S = 0.3
"""How long it may think about that, once somebody else has answered."""
DEAF_S = 1.75
"""If nobody at all was heard for so long (this instance's own presence comes every second), the line was cut."""
REJOIN_S = 5.0
"""After the line was cut every gateway gets this long to come back to the broker."""
LISTED_MAX = 4000
"""Longest list of running requests that a presence carries; a list of that length is taken for cut off."""

Reason = Literal["gateway_gone", "gateway_done"]
"""Why a request is an orphan: its gateway is gone, or lives and has ended it, and its word to the stages was lost."""

_TICK_S = 0.2
_FORGET_S = 600.0
_LATE_S = 1.0
_SAID: Mapping[Reason, str] = {
    "gateway_gone": "request of a gateway that is gone taken out",
    "gateway_done": "request that its gateway no longer knows taken out",
}
CANCELLED = b"cancelled"


@dataclass
class _Gateway:
    """What is known of a gateway.

    Attributes:
        heard: clock reading from which its silence counts.
        told: when it last really spoke.
    """

    heard: float
    told: float = float("-inf")
    state: str = "ready"
    listed: frozenset[str] = frozenset()


class OrphanPolicy:
    """Who owns what, and who is gone. No event loop; the clock is passed in.

    Silence proves nothing by itself: it may be this instance that hears nobody. So a silent gateway is asked, and only
    if others answer and it does not is it taken for gone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._unlisted: dict[str, float] = {}
        self._last_heard = clock()
        self._asked: float | None = None
        self._answered: float | None = None

    def heard(self, presence: Presence) -> None:
        """Any instance has spoken."""
        now = self._clock()
        if now - self._last_heard > DEAF_S:
            self.line_restored()
        self._last_heard = now
        if self._asked is not None and self._answered is None:
            self._answered = now
        if presence.service == GATEWAY:
            self._gateways[presence.instance] = _Gateway(now, now, presence.state, frozenset(presence.running))

    def line_restored(self) -> None:
        """The broker was away: everybody's silence counts from a while after now."""
        for gateway in self._gateways.values():
            gateway.heard = max(gateway.heard, self._clock() + REJOIN_S)
        self._unlisted.clear()
        self._asked = self._answered = None

    def must_ask(self, owners: Iterable[str]) -> bool:
        """Whether to ask everybody for a sign of life; counts as asked if so."""
        now = self._clock()
        suspects = any(now - self._known(owner).heard >= SUSPECT_S for owner in set(owners))
        if not suspects:
            self._asked = self._answered = None
            return False
        if self._asked is not None and now - self._asked < SUSPECT_S:
            return False
        self._asked, self._answered = now, None
        return True

    def orphans(self, owners: Mapping[str, str]) -> dict[str, Reason]:
        """The running requests that no gateway waits for any more, and why.

        Args:
            owners: request id -> instance name of its gateway.
        """
        now = self._clock()
        listed = frozenset[str]().union(
            *(gateway.listed for gateway in self._gateways.values() if now - gateway.heard < SILENT_S)
        )
        self._note_unlisted(owners, listed)
        self._forget(frozenset(owners.values()))
        reasons = {
            request_id: self._left(request_id, self._known(owner))
            for request_id, owner in owners.items()
            if request_id not in listed
        }
        return {request_id: reason for request_id, reason in reasons.items() if reason is not None}

    def _known(self, owner: str) -> _Gateway:
        """A gateway that was never heard is silent since somebody first asked about it."""
        return self._gateways.setdefault(owner, _Gateway(self._clock()))

    def _left(self, request_id: str, gateway: _Gateway) -> Reason | None:
        """Why nobody waits for a request that no living gateway lists; None while somebody may."""
        now = self._clock()
        if now - gateway.heard >= SILENT_S:
            answered = self._answered is not None and now - self._answered >= ANSWER_S
            return "gateway_gone" if answered else None
        if gateway.state == "failed":
            return "gateway_gone"
        done = len(gateway.listed) < LISTED_MAX and gateway.told - self._unlisted[request_id] >= SILENT_S
        return "gateway_done" if done else None

    def _note_unlisted(self, owners: Mapping[str, str], listed: frozenset[str]) -> None:
        now = self._clock()
        self._unlisted = {
            request_id: self._unlisted.get(request_id, now) for request_id in owners if request_id not in listed
        }

    def _forget(self, needed: frozenset[str]) -> None:
        limit = self._clock() - _FORGET_S
        for name in [n for n, gateway in self._gateways.items() if n not in needed and gateway.heard < limit]:
            del self._gateways[name]


class OrphanWatch:
    """Clears up the orphans among an instance's requests.

    Args:
        tombstones: the bucket of requests that are over.
        owners: the interactive requests that run here, with the instance name of each one's gateway; requests without
            one (jobs) left out.
        reaped: told each request that was taken out of the system.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bus: Bus,
        tombstones: KeyValue,
        owners: Callable[[], Mapping[str, str]],
        *,
        reaped: Callable[[str], None] = lambda request_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._tombstones = tombstones
        self._owners = owners
        self._reaped = reaped
        self._clock = clock
        self._policy = OrphanPolicy(clock)
        self._late: dict[str, float] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        subscription = await self._bus.subscribe(self._bus.subjects.presences(), self._hear)
        self._bus.on_reconnect(self._reconnected)
        connected = True
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                if self._bus.connected:
                    if not connected:
                        self._policy.line_restored()
                    await self._look()
                connected = self._bus.connected
        finally:
            await subscription.close()

    async def _reconnected(self) -> None:
        self._policy.line_restored()

    async def _hear(self, message: Message) -> None:
        try:
            presence = read_presence(message)
        except (msgspec.MsgspecError, Broken) as error:
            # `Neighbours` hears it too, and counts it.
            _log.debug("unreadable_presence", subject=message.subject, error=type(error).__name__)
            return
        if presence is not None:
            self._policy.heard(presence)

    async def _look(self) -> None:
        owners = {name: owner for name, owner in self._owners().items() if name not in self._late}
        try:
            if self._policy.must_ask(owners.values()):
                await self._bus.send(self._bus.subjects.ctl_everyone(), encode(Ping()))
            for request_id, reason in self._policy.orphans(owners).items():
                await take_out(self._bus, self._tombstones, request_id, reason)
                _log.warning(_SAID[reason], request_id=request_id, gateway=owners[request_id])
                self._late[request_id] = self._clock() + _LATE_S
                self._reaped(request_id)
            for request_id in [name for name, due in self._late.items() if due <= self._clock()]:
                # Whoever looked for the tombstone just before it was written may have published since.
                await self._bus.purge_request(request_id)
                del self._late[request_id]
        except OmnistageError as error:
            # What was left undone is found again by the next look.
            _log.warning("cannot_clear_orphans", code=error.code)


async def take_out(bus: Bus, tombstones: KeyValue, request_id: str, reason: Reason = "gateway_gone") -> None:
    """Cancel a request everywhere and remove its work and logs. May be repeated.

    Raises:
        BusError: the broker is away; some of it may be done.
    """
    # The tombstone comes first: who claims the work after the word was sent still finds it.
    if await tombstones.get(request_id) is None:
        await tombstones.put(request_id, CANCELLED)
    await bus.send(bus.subjects.ctl_request(request_id), encode(Cancel(request_id=request_id, reason=reason)))
    await bus.purge_request(request_id)
