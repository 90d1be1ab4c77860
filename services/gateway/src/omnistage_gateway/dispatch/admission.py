"""The waiting line on the event loop: a request awaits its place, and places wake one another. No polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from omnistage.errors import OmnistageError, Unavailable
from omnistage_gateway.dispatch.line import Line, Ticket


class Place:
    """Slots of every engine on a request's route, held until `release`.

    Attributes:
        waited_s: how long the request stood in line.
    """

    def __init__(self, ticket: Ticket, release: Callable[[Ticket], None]) -> None:
        assert ticket.started is not None
        self.waited_s = ticket.started - ticket.entered
        self._ticket = ticket
        self._release: Callable[[Ticket], None] | None = release

    def release(self) -> None:
        """Give the slots back. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self._ticket)

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """Hands out places.

    Args:
        line: the policy.
        clock: the same clock as the line's.
    """

    def __init__(self, line: Line, clock: Callable[[], float]) -> None:
        self._line = line
        self._clock = clock
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._refusing = False
        self._closed = False

    @property
    def refusing(self) -> bool:
        """Whether nobody may join the line any more."""
        return self._refusing

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return self._line.running

    async def enter(self, ticket: Ticket) -> Place:
        """Wait for a place. Cancellation-safe: whoever is cancelled leaves the line and keeps no slot.

        Raises:
            Unavailable, RateLimited: refused, at the door or later; with retry_after_s.
        """
        if self._refusing:
            raise _leaving()
        self._line.enter(ticket)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        self.wake()
        try:
            await waiter
        except BaseException:
            self._waiters.pop(ticket, None)
            if ticket.started is not None:
                self._finish(ticket)
            else:
                self._line.leave(ticket)
                self.wake()
            raise
        return Place(ticket, self._finish)

    def wake(self) -> None:
        """Look at the line again: something has changed."""
        step = self._line.step()
        for ticket in step.admitted:
            self._resolve(ticket, None)
        for ticket, error in step.refused:
            self._resolve(ticket, error)
        self._set_timer(step.wake_at)

    def refuse(self) -> None:
        """Refuse everybody who comes. Those who wait go on waiting. Idempotent."""
        self._refusing = True

    def close(self) -> None:
        """Refuse everybody who waits or comes. Those who have a place keep it. Idempotent."""
        self._refusing = self._closed = True
        for ticket in list(self._waiters):
            self._line.leave(ticket)
            self._resolve(ticket, _leaving())
        self._set_timer(None)

    def _resolve(self, ticket: Ticket, error: OmnistageError | None) -> None:
        waiter = self._waiters.pop(ticket, None)
        if waiter is None or waiter.done():
            # Cancelled, but its task has not run yet: `enter` gives the slots back.
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    def _finish(self, ticket: Ticket) -> None:
        self._line.finish(ticket)
        self.wake()

    def _set_timer(self, wake_at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None and not self._closed:
            delay = max(0.0, wake_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.wake)


def _leaving() -> Unavailable:
    return Unavailable("this gateway is shutting down", code="shutting_down", retry_after_s=1.0)
