"""Logs in memory: a list of records per subject, read by cursors."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable, Mapping

from omnistage.errors import Fenced, QueueFull
from omnistage.transport.bus import Message


class Logs:
    """All logs of one class; sequences count over all of them, as in a stream."""

    def __init__(self) -> None:
        self.records: dict[str, list[Message]] = {}
        self.followers: dict[str, set[MemoryLog]] = {}
        self._sequence = itertools.count(1)
        self._nbytes = 0

    def append(self, subject: str, body: bytes, headers: Mapping[str, str], expected: int, max_bytes: int) -> int:
        """Append if the log's last sequence is `expected`. Raises Fenced or QueueFull."""
        records = self.records.get(subject, [])
        last = records[-1].sequence if records else 0
        if last != expected:
            raise Fenced(f"another holder has taken this log, or it was purged: last sequence {last}")
        if self._nbytes + len(body) > max_bytes:
            raise QueueFull("the log stream is full", retry_after_s=1.0)
        record = Message(subject, bytes(body), dict(headers), next(self._sequence), last)
        self._nbytes += len(body)
        self.records.setdefault(subject, []).append(record)
        for log in self.followers.get(subject, ()):
            log.notify()
        return record.sequence

    def read(self, subject: str, after: int) -> list[Message]:
        """Records above `after`."""
        records = self.records.get(subject, [])
        return records[bisect.bisect_right(records, after, key=lambda record: record.sequence) :]

    def purge(self, belongs: Callable[[str], bool]) -> None:
        """Remove the logs whose subject belongs to what is purged."""
        for subject in [subject for subject in self.records if belongs(subject)]:
            self._nbytes -= sum(len(record.body) for record in self.records.pop(subject))


class MemoryLog:
    """Records of one subject from a cursor on."""

    def __init__(self, logs: Logs, subject: str, after: int, on_close: Callable[[MemoryLog], None]) -> None:
        self._logs = logs
        self._subject = subject
        self._seen = after
        self._on_close = on_close
        self._wake: asyncio.Future[None] | None = None
        self._closed = False
        logs.followers.setdefault(subject, set()).add(self)

    def __aiter__(self) -> MemoryLog:
        return self

    async def __anext__(self) -> Message:
        while not self._closed:
            records = self._logs.read(self._subject, self._seen)
            if records:
                self._seen = records[0].sequence
                return records[0]
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        raise StopAsyncIteration

    def notify(self) -> None:
        """Something was appended."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        followers = self._logs.followers[self._subject]
        followers.discard(self)
        if not followers:
            del self._logs.followers[self._subject]
        self.notify()
