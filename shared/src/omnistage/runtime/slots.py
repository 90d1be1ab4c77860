"""The slots of an engine: how many requests run at once, and running one of them alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """Slots are reserved before work is claimed, then entered by it, then left.

    A reservation is no run: whoever runs alone does not wait for those that have only reserved, they wait for him.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._reserved = 0
        self._running = 0
        self._alone = False
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def reserve(self) -> None:
        """Wait for a slot and keep it for work that is still to come."""
        await self._until(lambda: self._reserved + self._running < self._count)
        self._reserved += 1

    def cancel_reservation(self) -> None:
        """No work has come."""
        self._reserved -= 1
        self._notify()

    async def enter(self) -> None:
        """Run in the reserved slot, as soon as nobody runs alone."""
        try:
            await self._until(lambda: not self._alone)
        except BaseException:
            self.cancel_reservation()
            raise
        self._reserved -= 1
        self._running += 1

    def leave(self) -> None:
        """The run is over."""
        self._running -= 1
        self._notify()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing else runs inside the block. The caller has entered before, and still has afterwards."""
        self.leave()
        try:
            # One at a time; those that wait for their turn run nothing and hold nobody up.
            async with self._turn:
                self._alone = True
                try:
                    await self._until(lambda: self._running == 0)
                    yield
                finally:
                    self._alone = False
        finally:
            self._running += 1
            self._notify()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
