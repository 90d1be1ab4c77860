"""Turns that a test takes one by one, on a clock by hand: who is served in which order, without any timing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from omnistage.urgency import Turns, Urgency

T = TypeVar("T")

_PATIENCE_S = 10.0


class HandClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SteppedTurns(Turns):
    """Turns in one thread, each of which is chosen and run when a test says so.

    Requests are numbered in the order in which they first asked for a turn.
    """

    def __init__(self, threads: int, *, name: str, by_deadline: bool, clock: Callable[[], float]) -> None:
        assert threads == 1, "with more the order would depend on timing"
        assert isinstance(clock, HandClock)
        super().__init__(threads, name=name, by_deadline=by_deadline, clock=clock)
        self._hand = clock
        self._takes_s = 0.0
        self._numbers: dict[Urgency, int] = {}
        self._permits = threading.Semaphore(0)
        self._served: list[int] = []
        self._free = False

    async def run(self, urgency: Urgency, call: Callable[[], T]) -> T:
        """As `Turns.run`; nothing runs before `step`."""
        number = self._numbers.setdefault(urgency, len(self._numbers))

        def stepped() -> T:
            try:
                return call()
            finally:
                self._hand.now += self._takes_s
                self._served.append(number)

        return await super().run(urgency, stepped)

    async def step(self, *, waiting: int, takes_s: float) -> int:
        """Run one of the calls that wait, once there are so many.

        Args:
            waiting: how many there must be to choose from.
            takes_s: how long the call takes on the clock.

        Returns:
            The number of the request that was served.
        """
        await self._until(lambda: self.waiting >= waiting)
        before = len(self._served)
        self._takes_s = takes_s
        self._permits.release()
        await self._until(lambda: len(self._served) > before)
        return self._served[before]

    async def joined(self, requests: int) -> None:
        """Wait until so many requests have asked for a turn since the start."""
        await self._until(lambda: len(self._numbers) >= requests)

    def let_all(self) -> None:
        """Hold nothing up any more."""
        self._free = True
        self._permits.release(self.waiting + 1)

    def _run_first(self) -> None:
        if not self._free:
            self._permits.acquire()
        super()._run_first()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - it is a thread that changes it
                await asyncio.sleep(0.001)
