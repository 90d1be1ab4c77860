"""Promises to those who were refused: whoever comes back when told to is let in.

Retry-After alone promises nothing: under overload others come meanwhile and take what has become free. So a refusal
books a time, and until then the room for it is kept from newcomers. Bookings of one key are spaced by its fair share of
the measured pace, so that no key can book the future away from the others. Not everybody comes back; how many do is
measured, and only so much room is kept.

A client is recognized by what it asks for, so it needs to do no more than to send the same request again. It may come
to another gateway than the one that refused it: gateways tell one another what they have promised, and each keeps its
part of the room for all of it.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

EARLY_S = 0.5
"""Who comes this much before its time is let in as well: clocks and timers differ."""
GRACE_S = 2.0
"""A booking is kept this long beyond its time."""
LATE_S = 0.3
"""Who is later than this is no longer waited for: most of them do not come at all."""
HEADROOM = 1.2
"""Bookings are made this much sparser than the measured pace: a line that is filled to the brim only grows."""
SPREAD = 1.2
"""And by this again where there are several gateways: it is chance to which of them a client comes back."""
MOST = 100_000
"""Bookings that are kept at once; beyond that refusals promise nothing."""

_SMOOTHING = 0.05
_LEAST_KEPT = 0.1
"""Even if hardly anybody comes back, not all are told to come at the same time."""


@dataclass(frozen=True)
class Booking:
    """A promise.

    Attributes:
        due: clock reading from which on the client may come.
        engines: the engines on the request's route.
        tenant: whose it is; empty if another gateway made the promise.
    """

    key: str
    due: float
    engines: tuple[str, ...]
    tenant: str = ""


class Others(Protocol):
    """The other gateways, where there are any."""

    @property
    def gateways(self) -> int:
        """How many gateways serve, this one included."""
        ...

    def part(self, engine: str) -> float:
        """Which part of an engine's slots is this gateway's, and so of those who come back."""
        ...

    def booked(self, booking: Booking) -> None:
        """Tell them of a promise."""
        ...

    def claimed(self, key: str) -> None:
        """Tell them that a promise is used up."""
        ...


class Alone:
    """There are no others."""

    gateways = 1

    def part(self, engine: str) -> float:
        return 1.0

    def booked(self, booking: Booking) -> None: ...

    def claimed(self, key: str) -> None: ...


class Bookings:
    """All promises of one gateway, and those that it has heard of.

    Args:
        clock: monotonic seconds.
        others: is told what this one promises.

    Attributes:
        kept: which part of the clients comes back in time, as a moving average.
    """

    def __init__(self, clock: Callable[[], float], others: Others | None = None) -> None:
        self._clock = clock
        self._others: Others = others or Alone()
        self._by_key: dict[str, Booking] = {}
        self._order: list[tuple[float, str]] = []
        self._held: Counter[str] = Counter()
        self._next: dict[str, float] = {}
        self.kept = 1.0

    def __len__(self) -> int:
        return len(self._by_key)

    def tenants(self) -> set[str]:
        """Those who hold a booking of this gateway."""
        return set(self._held)

    def claim(self, key: str) -> bool:
        """Whether this client was promised to be let in now; uses the promise up if so."""
        booking = self._by_key.get(key)
        if booking is None or self._clock() < booking.due - EARLY_S:
            return False
        self._used(booking)
        self._others.claimed(key)
        return True

    def heard(self, booking: Booking) -> None:
        """Another gateway has promised this."""
        if booking.key not in self._by_key and len(self._by_key) < MOST:
            self._by_key[booking.key] = booking
            insort(self._order, (booking.due, booking.key))

    def heard_claimed(self, key: str) -> None:
        """The client has come to another gateway."""
        booking = self._by_key.get(key)
        if booking is not None:
            self._used(booking)

    def wait_s(self, key: str) -> float | None:
        """Seconds until the time that this client was promised; None if it was promised nothing."""
        booking = self._by_key.get(key)
        return None if booking is None else booking.due - self._clock()

    def book(self, key: str, tenant: str, engines: tuple[str, ...], earliest_s: float, spacing_s: float) -> float:
        """Promise a time, in whole seconds from now, since Retry-After has no fractions.

        Args:
            earliest_s: no sooner than this.
            spacing_s: seconds between two requests of this tenant at its share of the pace.
        """
        now = self._clock()
        # The times themselves lie up to a second behind the evenly spaced ones, which are what the next follows on:
        # so the pace holds although everybody's seconds begin at another moment.
        even = max(now + max(1.0, earliest_s), self._next.get(tenant, now))
        seconds = math.ceil(even - now)
        if key and len(self._by_key) < MOST:
            booking = self._by_key[key] = Booking(key, now + seconds, engines, tenant)
            insort(self._order, (booking.due, key))
            self._held[tenant] += 1
            self._next[tenant] = even + spacing_s * self._headroom() * max(self.kept, _LEAST_KEPT)
            self._others.booked(booking)
        return float(seconds)

    def reserved(self, engine: str, within_s: float) -> int:
        """Slots of an engine to be kept for those who are likely to come to this gateway within so many seconds."""
        now = self._clock()
        first = bisect_left(self._order, (now - LATE_S, ""))
        due = 0
        for at, key in itertools.islice(self._order, first, None):
            if at > now + within_s:
                break
            due += engine in self._by_key[key].engines
        return math.ceil(due * self.kept * self._others.part(engine))

    def expire(self) -> None:
        """Forget promises whose time has passed."""
        limit = self._clock() - GRACE_S
        while self._order and self._order[0][0] < limit:
            booking = self._by_key[self._order[0][1]]
            self._drop(booking)
            if booking.tenant:
                self._learn(0.0)

    def _used(self, booking: Booking) -> None:
        self._drop(booking)
        if booking.tenant:
            self._learn(1.0)

    def _drop(self, booking: Booking) -> None:
        del self._by_key[booking.key]
        del self._order[bisect_left(self._order, (booking.due, booking.key))]
        if not booking.tenant:
            return
        self._held[booking.tenant] -= 1
        if not self._held[booking.tenant]:
            del self._held[booking.tenant]
            del self._next[booking.tenant]

    def _headroom(self) -> float:
        return HEADROOM * SPREAD if self._others.gateways > 1 else HEADROOM

    def _learn(self, came: float) -> None:
        self.kept += _SMOOTHING * (came - self.kept)
