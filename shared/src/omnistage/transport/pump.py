"""Serial delivery of messages to a handler; what a failing handler does to everybody else: nothing."""

from __future__ import annotations

import asyncio

from omnistage.observability import get_logger
from omnistage.transport.bus import Handler, Message
from omnistage.transport.stats import BusStats

_log = get_logger(__name__)


async def deliver(handler: Handler, message: Message, stats: BusStats) -> None:
    """Call the handler; an error is counted and logged, without the message's body or the error's text."""
    try:
        await handler(message)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises must not end the subscription
        stats.errors += 1
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else "?"
        _log.error("handler failed", subject=message.subject, error=type(error).__name__, where=where)


class Pump:
    """A queue in front of a handler, with a task of its own that ends with `close`."""

    def __init__(self, handler: Handler, stats: BusStats) -> None:
        self._handler = handler
        self._stats = stats
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, message: Message) -> None:
        """Deliver after those that wait."""
        self._queue.put_nowait(message)

    async def close(self) -> None:
        """End the delivery. Idempotent; callable from within the handler."""
        self._task.cancel()
        if self._task is not asyncio.current_task():
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await deliver(self._handler, await self._queue.get(), self._stats)
