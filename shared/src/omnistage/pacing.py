"""Holds the results of one request back, so that they leave no faster than a given rate.

A service that computes many times faster than its listeners listen has nothing in flight for most of an answer. Paced,
it works all the time while the answer is heard: what tests of failures need, and what leaves a shared machine idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


class Pacer:
    """The pace of one request.

    A result of n units is followed by the next after n / rate seconds at the earliest; the first is never delayed, and
    time that passed unused is not made up for.

    Args:
        rate: units per second, above 0; None does not hold anything back.
        clock: monotonic seconds.
        sleep: waits for that many seconds; cancelling it cancels the wait.
    """

    def __init__(self, rate: float | None, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        assert rate is None or rate > 0
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due: float | None = None

    async def release(self, units: float) -> None:
        """Wait until a result of this many units may leave."""
        if self._rate is None:
            return
        now = self._clock()
        begin = now if self._due is None else max(now, self._due)
        if begin > now:
            await self._sleep(begin - now)
        self._due = begin + units / self._rate
