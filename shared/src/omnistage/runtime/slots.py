"""The slots of an engine: how many requests run at once, and running one of them alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Slots:
    """Slots are reserved before work is claimed, then entered by it, then left.

    A reservation is no run: whoever runs alone does not wait for those that have only reserved, they wait for him.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._reserved = 0
        self._running = 0
        self._alone = False
        self._suspects = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """Slots that are neither reserved nor run in."""
        return self._count - self._reserved - self._running

    async def reserve(self) -> None:
        """Wait for a slot and keep it for work that is still to come; not while somebody runs or wants to run alone."""
        await self._until(
            lambda: self._reserved + self._running < self._count and not self._alone and not self._suspects
        )
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

    async def isolate(self, make_room: Callable[[], None] = lambda: None) -> Callable[[], None]:
        """Wait until nothing else runs, and let nothing else begin; the caller has entered before, and still has.

        Args:
            make_room: called when the caller's turn has come: asks those that run to leave.

        Returns:
            Ends the isolation; may be called again. The caller goes on in its slot.
        """
        self.leave()
        self._suspects += 1
        try:
            # One at a time; those that wait for their turn run nothing and hold nobody up.
            await self._turn.acquire()
            self._alone = True
            try:
                make_room()
                await self._until(lambda: self._running == 0)
            except BaseException:
                self._end_isolation()
                raise
        finally:
            self._suspects -= 1
            self._running += 1
            self._notify()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._end_isolation()

        return end

    def _end_isolation(self) -> None:
        self._alone = False
        self._turn.release()
        self._notify()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
