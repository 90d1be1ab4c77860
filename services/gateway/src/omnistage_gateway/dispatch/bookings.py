"""Promises to those who were refused: whoever comes back when told to is let in.

Retry-After alone promises nothing: under overload others come meanwhile and take what has become free. So a refusal
books a time, and until then the room for it is kept from newcomers. Bookings of one key are spaced by its fair share of
the measured pace, so that no key can book the future away from the others. Not everybody comes back; how many do is
measured, and only so much room is kept.

A client is recognized by what it asks for, so it needs to do no more than to send the same request again.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

EARLY_S = 0.5
"""Who comes this much before its time is let in as well: clocks and timers differ."""
GRACE_S = 2.0
"""A booking is kept this long beyond its time."""
LATE_S = 0.3
"""Who is later than this is no longer waited for: most of them do not come at all."""
HEADROOM = 1.2
"""Bookings are made this much sparser than the measured pace: a line that is filled to the brim only grows."""
MOST = 100_000
"""Bookings that are kept at once; beyond that refusals promise nothing."""

_SMOOTHING = 0.05
_LEAST_KEPT = 0.1
"""Even if hardly anybody comes back, not all are told to come at the same time."""
_WINDOW_S = 1.0
_SLACK_S = 3.0


@dataclass(frozen=True)
class Booking:
    """A promise.

    Attributes:
        due: clock reading from which on the client may come.
        engines: the engines on the request's route.
    """

    key: str
    tenant: str
    due: float
    engines: tuple[str, ...]


class Bookings:
    """All promises of one gateway.

    Args:
        clock: monotonic seconds.

    Attributes:
        kept: which part of the clients comes back in time, as a moving average.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_key: dict[str, Booking] = {}
        self._order: list[tuple[float, str]] = []
        self._due: dict[str, list[float]] = {}
        self._latest: dict[str, float] = {}
        self.kept = 1.0

    def __len__(self) -> int:
        return len(self._by_key)

    def tenants(self) -> set[str]:
        """Those who hold a booking."""
        return set(self._due)

    def claim(self, key: str) -> bool:
        """Whether this client was promised to be let in now; uses the promise up if so."""
        booking = self._by_key.get(key)
        if booking is None or self._clock() < booking.due - EARLY_S:
            return False
        self._drop(booking)
        self._learn(1.0)
        return True

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
        due = self._due.get(tenant, [])
        spacing_s *= HEADROOM * max(self.kept, _LEAST_KEPT)
        # What is well before the latest is taken: looking there again and again would cost more with every booking.
        full_s = self._latest.get(tenant, now) - _SLACK_S - now
        seconds = max(1, math.ceil(max(earliest_s, full_s)))
        while not _has_room(due, now + seconds, spacing_s):
            seconds += 1
        if key and len(self._by_key) < MOST:
            booking = self._by_key[key] = Booking(key, tenant, now + seconds, engines)
            insort(self._due.setdefault(tenant, due), booking.due)
            insort(self._order, (booking.due, key))
            self._latest[tenant] = max(self._latest.get(tenant, booking.due), booking.due)
        return float(seconds)

    def reserved(self, engine: str, within_s: float) -> int:
        """Slots of an engine to be kept for those who are likely to come within so many seconds."""
        now = self._clock()
        first = bisect_left(self._order, (now - LATE_S, ""))
        due = 0
        for at, key in itertools.islice(self._order, first, None):
            if at > now + within_s:
                break
            due += engine in self._by_key[key].engines
        return math.ceil(due * self.kept)

    def expire(self) -> None:
        """Forget promises whose time has passed."""
        limit = self._clock() - GRACE_S
        while self._order and self._order[0][0] < limit:
            self._drop(self._by_key[self._order[0][1]])
            self._learn(0.0)

    def _drop(self, booking: Booking) -> None:
        del self._by_key[booking.key]
        del self._order[bisect_left(self._order, (booking.due, booking.key))]
        due = self._due[booking.tenant]
        del due[bisect_left(due, booking.due)]
        if not due:
            del self._due[booking.tenant]
            del self._latest[booking.tenant]

    def _learn(self, came: float) -> None:
        self.kept += _SMOOTHING * (came - self.kept)


def _has_room(due: list[float], at: float, spacing_s: float) -> bool:
    """Whether one more at this time keeps the pace in the window before it and in the one after it.

    A window holds several, since times are whole seconds apart from any moment at which somebody is refused, and
    strict distances would leave gaps that nobody fits into.
    """
    window_s = max(_WINDOW_S, spacing_s)
    most = max(1.0, window_s / spacing_s) if spacing_s > 0 else math.inf
    before = bisect_right(due, at) - bisect_right(due, at - window_s)
    after = bisect_left(due, at + window_s) - bisect_left(due, at)
    return before + 1 <= most and after + 1 <= most
