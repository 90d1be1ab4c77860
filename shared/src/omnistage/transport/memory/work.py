"""Work queues in memory, with the habits of the broker's: redelivery, and acks that come from anybody."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omnistage.errors import BusUnavailable
from omnistage.transport.bus import Message
from omnistage.transport.stats import BusStats

_tokens = itertools.count(1)


@dataclass(eq=False)
class Item:
    """A queued item. `timer` runs while it is held, or given back with a delay."""

    message: Message
    deliveries: int = 0
    ready: bool = True
    tokens: list[str] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


Waiter = asyncio.Future[tuple[Item, str]]


class Work:
    """The items of one stage and model, and the claims that wait for them."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self._ready: deque[Item] = deque()
        self._waiting: deque[tuple[Waiter, float]] = deque()
        self._by_token: dict[str, Item] = {}

    @property
    def pending(self) -> int:
        return len(self._ready)

    def add(self, message: Message) -> bool:
        """Queue an item; False if its subject is queued already."""
        if message.subject in self.items:
            return False
        item = self.items[message.subject] = Item(message)
        self._ready.append(item)
        self._dispatch()
        return True

    def wait(self, ack_wait_s: float) -> Waiter:
        """A future that gets the next item and its token."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, ack_wait_s))
        self._dispatch()
        return waiter

    def remove(self, item: Item) -> None:
        """The item is done or purged."""
        self._stop_timer(item)
        if self.items.get(item.message.subject) is item:
            del self.items[item.message.subject]
        with contextlib.suppress(ValueError):
            self._ready.remove(item)
        for token in item.tokens:
            self._by_token.pop(token, None)

    def ack(self, token: str) -> None:
        item = self._by_token.get(token)
        if item is not None:
            self.remove(item)

    def nak(self, token: str, delay_s: float) -> None:
        item = self._by_token.get(token)
        if item is None or item.ready:
            return
        self._stop_timer(item)
        if delay_s > 0:
            item.timer = asyncio.get_running_loop().call_later(delay_s, self._again, item)
        else:
            self._again(item)

    def in_progress(self, token: str, ack_wait_s: float) -> None:
        item = self._by_token.get(token)
        if item is not None and not item.ready:
            self._stop_timer(item)
            item.timer = asyncio.get_running_loop().call_later(ack_wait_s, self._again, item)

    def holds(self, token: str) -> bool:
        return token in self._by_token

    def _again(self, item: Item) -> None:
        item.ready, item.timer = True, None
        self._ready.appendleft(item)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._ready and self._waiting:
            waiter, ack_wait_s = self._waiting.popleft()
            if waiter.done():
                continue
            item = self._ready.popleft()
            token = f"memory.{next(_tokens)}"
            item.deliveries += 1
            item.ready = False
            item.tokens.append(token)
            self._by_token[token] = item
            item.timer = asyncio.get_running_loop().call_later(ack_wait_s, self._again, item)
            waiter.set_result((item, token))

    @staticmethod
    def _stop_timer(item: Item) -> None:
        if item.timer is not None:
            item.timer.cancel()
            item.timer = None


class MemoryClaim:
    """A delivered work item."""

    def __init__(self, work: Work, item: Item, token: str, ack_wait_s: float) -> None:
        self._work = work
        self._message = item.message
        self._deliveries = item.deliveries
        self._token = token
        self._ack_wait_s = ack_wait_s

    @property
    def message(self) -> Message:
        return self._message

    @property
    def deliveries(self) -> int:
        return self._deliveries

    @property
    def token(self) -> str:
        return self._token

    async def ack(self) -> None:
        self._work.ack(self._token)

    async def nak(self, delay_s: float = 0.0) -> None:
        self._work.nak(self._token, delay_s)

    async def in_progress(self) -> None:
        self._work.in_progress(self._token, self._ack_wait_s)


class MemoryQueue:
    """Claims of one instance."""

    def __init__(self, work: Work, ack_wait_s: float, stats: BusStats, on_close: Callable[[MemoryQueue], None]) -> None:
        self._work = work
        self._ack_wait_s = ack_wait_s
        self._stats = stats
        self._on_close = on_close
        self._waiting: set[Waiter] = set()
        self._closed = False

    async def claim(self) -> MemoryClaim:
        await asyncio.sleep(0)
        if self._closed:
            raise BusUnavailable("this queue is closed")
        waiter = self._work.wait(self._ack_wait_s)
        self._waiting.add(waiter)
        try:
            await asyncio.wait({waiter})
            item, token = waiter.result()
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._work.nak(waiter.result()[1], 0.0)
            waiter.cancel()
            raise
        finally:
            self._waiting.discard(waiter)
        if item.deliveries > 1:
            self._stats.redelivered += 1
        return MemoryClaim(self._work, item, token, self._ack_wait_s)

    async def pending(self) -> int:
        await asyncio.sleep(0)
        return self._work.pending

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(BusUnavailable("this queue is closed"))
