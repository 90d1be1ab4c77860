"""Reading a stream while what came before is still being worked on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Takes items from an iterator as they come and keeps up to `limit` of them, in order.

    An async context manager; its reader ends with the block. An error of the iterator is raised by `wait` when
    everything before it was taken.
    """

    def __init__(self, source: AsyncIterator[T], *, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._items: deque[T] = deque()
        self._group = asyncio.TaskGroup()
        self._changed = asyncio.Condition()
        self._over = False
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._reader = self._group.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        await self._group.__aexit__(None, None, None)

    async def wait(self) -> bool:
        """Until there is an item (True) or there will be none any more (False)."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._items or self._over)
        if not self._items and self._error is not None:
            raise self._error
        return bool(self._items)

    async def gather(self, enough: Callable[[Sequence[T]], bool], patience_s: float | None) -> None:
        """Wait on, until what waits is enough, no more of it fits or will come, or the patience is over.

        Args:
            enough: judges the items that wait, in order.
            patience_s: seconds; None: as long as it takes.
        """

        def settled() -> bool:
            return self._over or len(self._items) >= self._limit or enough(self._items)

        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self._changed:
                await self._changed.wait_for(settled)

    def peek(self) -> T | None:
        """The next item, if it is there."""
        return self._items[0] if self._items else None

    async def take(self) -> T:
        """Remove the next item, which must be there."""
        async with self._changed:
            item = self._items.popleft()
            self._changed.notify_all()
        return item

    def put_back(self, item: T) -> None:
        """Make an item the next one again; beyond the limit, if it must be."""
        self._items.appendleft(item)

    async def _read(self) -> None:
        try:
            async for item in self._source:
                async with self._changed:
                    await self._changed.wait_for(lambda: len(self._items) < self._limit)
                    self._items.append(item)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, who raises it in its own place
            self._error = error
        async with self._changed:
            self._over = True
            self._changed.notify_all()
