"""From the readers of a request's logs to its router: a bounded buffer with an end.

Back-pressure: a full buffer holds the readers, which then take nothing more from their logs. The logs are durable and
the bus fills what its live path dropped meanwhile from them, so a reader that stands still loses nothing and needs no
second way to follow a log from where it stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """Several writers, one reader.

    Args:
        limit: items that it holds at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._news = asyncio.Event()
        self._closed = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        return self._closed

    async def put(self, item: T) -> None:
        """Add an item, waiting for room; what comes after the end is dropped."""
        while not self._closed and len(self._items) >= self._limit:
            self._room.clear()
            await self._room.wait()
        if not self._closed:
            self._items.append(item)
            self._news.set()

    def close(self, error: BaseException | None = None, *, at_once: bool = False) -> None:
        """Nothing more comes. The reader still gets what is there (unless `at_once`), then the error if any.

        The first call counts.
        """
        if self._closed:
            return
        self._closed = True
        self._error = error
        if at_once:
            self._items.clear()
        self._room.set()
        self._news.set()

    async def get(self) -> T | None:
        """The next item, None at the end. Cancellation-safe.

        Raises:
            The error that it was closed with, every time.
        """
        while not self._items:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        self._room.set()
        return item
