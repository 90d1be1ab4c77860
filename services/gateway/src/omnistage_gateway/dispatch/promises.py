"""What gateways tell one another: how much each could use, and what each has promised to whom it refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from omnistage.contracts import Promise, Promises, decode_control, encode
from omnistage.errors import BusError
from omnistage.observability import get_logger
from omnistage.runtime.tasks import TaskBag
from omnistage.transport import Bus, Message, Subscription
from omnistage_gateway.dispatch.bookings import Booking, Bookings
from omnistage_gateway.dispatch.credits import Wanted
from omnistage_gateway.dispatch.fleet import Fleet

_log = get_logger(__name__)

WANTED_EVERY_S = 0.5
"""What this gateway could use is told this often, as long as there are others."""
DELAY_S = 0.02
"""News are collected for so long: under overload there are many, and nobody comes back in less than a second."""
MOST_AT_ONCE = 300
"""Entries of one message; with names of the longest kind it stays below the broker's limit."""
MOST_UNSENT = 10_000
"""News that are kept while the broker is slow; beyond that the others are not told."""


class SharedPromises:
    """Implements `bookings.Others` over the bus.

    Args:
        bus: where the news go.
        fleet: knows how many gateways there are.
        clock: the same clock as the bookings'.
    """

    def __init__(self, bus: Bus, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._bus = bus
        self._fleet = fleet
        self._clock = clock
        self._booked: list[Booking] = []
        self._claimed: list[str] = []
        self._tasks = TaskBag("promises")
        self._telling = False
        self._subscription: Subscription | None = None
        self._bookings: Bookings | None = None

    async def start(self, bookings: Bookings, wanted: Callable[[], Wanted]) -> None:
        """Begin to listen and to tell; what is heard goes to `bookings` and to the fleet.

        Raises:
            BusUnavailable: there is no broker.
        """
        self._bookings = bookings
        self._subscription = await self._bus.subscribe(self._bus.subjects.promises(), self._hear)
        self._tasks.spawn(self._tell_wanted(wanted))

    async def close(self) -> None:
        """Listen and tell no more. Idempotent."""
        subscription, self._subscription = self._subscription, None
        await self._tasks.close()
        if subscription is not None:
            await subscription.close()

    @property
    def gateways(self) -> int:
        """See `bookings.Others`."""
        return self._fleet.table.gateways

    def part(self, engine: str) -> float:
        """See `bookings.Others`."""
        slots = self._fleet.engine(engine).slots
        return self._fleet.capacity(engine) / slots if slots else 1 / self.gateways

    def booked(self, booking: Booking) -> None:
        """See `bookings.Others`."""
        if self._tells():
            self._booked.append(booking)

    def claimed(self, key: str) -> None:
        """See `bookings.Others`."""
        if self._tells():
            self._claimed.append(key)

    def _tells(self) -> bool:
        """Whether there is anybody to tell; sees to it that it is done."""
        if self.gateways == 1 or self._subscription is None or self._tasks.closed:
            return False
        if not self._telling:
            self._telling = True
            self._tasks.spawn(self._tell())
        return len(self._booked) + len(self._claimed) < MOST_UNSENT

    async def _tell(self) -> None:
        try:
            await asyncio.sleep(DELAY_S)
            await self._tell_all()
        finally:
            self._telling = False

    async def _tell_all(self) -> None:
        while self._booked or self._claimed:
            booked, self._booked = self._booked[:MOST_AT_ONCE], self._booked[MOST_AT_ONCE:]
            claimed, self._claimed = self._claimed[:MOST_AT_ONCE], self._claimed[MOST_AT_ONCE:]
            now = self._clock()
            promises = tuple(Promise(key=one.key, in_s=one.due - now, engines=one.engines) for one in booked)
            await self._send(Promises(gateway=self._fleet.instance, booked=promises, claimed=tuple(claimed)))

    async def _tell_wanted(self, wanted: Callable[[], Wanted]) -> None:
        while True:
            await asyncio.sleep(WANTED_EVERY_S)
            if self.gateways > 1:
                now = {engine: dict(tenants) for engine, tenants in wanted().items()}
                await self._send(Promises(gateway=self._fleet.instance, wanted=now))
                # Only now, so that all divide by the same figures.
                self._fleet.wants(self._fleet.instance, now)

    async def _send(self, news: Promises) -> None:
        try:
            await self._bus.send(self._bus.subjects.promises(), encode(news))
        except BusError as error:
            # The others go on with what they know, and may refuse who comes to them.
            _log.warning("cannot_tell_other_gateways", code=error.code)

    async def _hear(self, message: Message) -> None:
        try:
            news = decode_control(message.body)
        except msgspec.MsgspecError as error:
            _log.warning("unreadable_promises", subject=message.subject, error=type(error).__name__)
            return
        if not isinstance(news, Promises) or news.gateway == self._fleet.instance or self._bookings is None:
            return
        if news.wanted is not None:
            self._fleet.wants(news.gateway, news.wanted)
        now = self._clock()
        for promise in news.booked:
            self._bookings.heard(Booking(promise.key, now + promise.in_s, promise.engines))
        for key in news.claimed:
            self._bookings.heard_claimed(key)
