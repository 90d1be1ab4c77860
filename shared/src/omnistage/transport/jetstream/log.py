"""A log as it grows: history by direct get, the live tail by a core subscription, gaps filled from the stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from omnistage.errors import BusUnavailable
from omnistage.transport.bus import Message
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.jetstream.records import read_batch

LIVE_LIMIT = 1024
"""Live records that wait for their reader; beyond it they are dropped and read from the stream later."""

_FILLS, _FILL_PAUSE_S = 3, 0.02
"""Reads for one gap before it counts as purged, and the pause between them (replicas may lag)."""


class JetStreamLog:
    """Records of one subject. The live path may lose anything: the stream is asked whenever the chain breaks.

    Each live record names the sequence of the one before it on its subject. When that is one we have not seen, or
    after a reconnect, or when it was quiet for long, the missing part is read from the stream.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        subject: str,
        after: int,
        on_close: Callable[[JetStreamLog], None],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._on_close = on_close
        self._seen = after
        self._ready: deque[Message] = deque()
        self._live: deque[Message] = deque()
        self._behind = True
        self._expects_gap = False
        self._fills = 0
        self._wake: asyncio.Future[bool] | None = None
        self._closed = False
        self._subscription: Subscription | None = None

    async def open(self, live_subject: str, *, fresh: bool = False) -> None:
        """Subscribe, then read the first part of the history, unless there is none yet."""
        await self._connection.ready()
        self._subscription = await self._connection.subscribe(live_subject, self._on_live)
        if fresh:
            # The broker handles one connection's commands in order: what we publish next comes after the
            # subscription. Should the connection break before, `check` will have the history read.
            self._behind = False
            return
        try:
            # The broker handles one connection's commands in order, so with the answer the subscription stands.
            await self._catch_up()
        except BaseException:
            await self.close()
            raise

    def __aiter__(self) -> JetStreamLog:
        return self

    async def __anext__(self) -> Message:
        while not self._ready:
            if self._closed or self._connection.closed:
                raise StopAsyncIteration
            if self._behind:
                await self._try_to_catch_up()
            elif self._live:
                await self._admit(self._live[0])
            elif not await self._woken(self._connection.options.idle_check_s):
                self._behind = self._expects_gap = True
        return self._ready.popleft()

    def check(self) -> None:
        """Look at the stream again: the connection was away."""
        self._behind = self._expects_gap = True
        self._notify()

    async def close(self) -> None:
        """End the iteration and the subscription. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._notify()
        self._on_close(self)
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)

    async def _on_live(self, raw: Msg) -> None:
        if len(self._live) < LIVE_LIMIT:
            self._live.append(wire.stored(raw))
        else:
            self._behind = self._expects_gap = True
        self._notify()

    async def _admit(self, record: Message) -> None:
        """Take the first live record if it continues what was seen, else have the gap filled."""
        if record.sequence <= self._seen:
            self._live.popleft()
        elif record.previous <= self._seen or self._fills >= _FILLS:
            self._live.popleft()
            self._fills = 0
            self._seen = record.sequence
            self._ready.append(record)
        else:
            if self._fills:
                await asyncio.sleep(_FILL_PAUSE_S)
            self._fills += 1
            self._behind = self._expects_gap = True

    async def _try_to_catch_up(self) -> None:
        try:
            await self._catch_up()
        except BusUnavailable:
            # The broker is away and the connection already waited; a reader's patience is its own deadline.
            await self._woken(self._connection.options.idle_check_s)

    async def _catch_up(self) -> None:
        self._behind = False
        try:
            records, more = await read_batch(
                self._connection, self._stream, self._subject, self._seen, self._connection.options.read_batch
            )
        except BaseException:
            self._behind = True
            raise
        if records:
            if self._expects_gap:
                self._connection.stats.gaps_filled += 1
            self._seen = records[-1].sequence
            self._ready.extend(records)
            self._fills = 0
        self._expects_gap = False
        self._behind = self._behind or (more and bool(records))

    async def _woken(self, timeout_s: float) -> bool:
        """Wait for a live record, a check or close; False if none came in time."""
        loop = asyncio.get_running_loop()
        wake: asyncio.Future[bool] = loop.create_future()
        self._wake = wake
        timer = loop.call_later(timeout_s, self._notify, False)
        try:
            return await wake
        finally:
            timer.cancel()
            self._wake = None

    def _notify(self, heard: bool = True) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(heard)
