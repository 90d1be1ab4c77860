"""A request's edges: writing one as the only holder, reading one exactly once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from omnistage.contracts import AnyRecord, End, Failed, Failure, Opened, Record, decode_record, encode
from omnistage.errors import Fenced, InputStarved, StageFailed
from omnistage.runtime.failures import to_error
from omnistage.runtime.meta import Meta, sent_now
from omnistage.transport import Bus, Log

_OPEN_ATTEMPTS = 8


class EdgeWriter:
    """The writing end of an edge's log. Opening it fences every holder before this one."""

    def __init__(self, bus: Bus, subject: str, *, request_id: str, edge: str, instance: str, meta: Meta) -> None:
        self.edge = edge
        self.epoch = 0
        self.finished = False
        self.earlier: list[Record] = []
        """Data records that earlier holders wrote, in order: what a resumed stage must not emit again."""
        self._bus = bus
        self._subject = subject
        self._request_id = request_id
        self._instance = instance
        self._headers = meta.to_headers()
        self._last = 0
        self._count = 0

    async def open(self) -> None:
        """Read what the log holds and take it over.

        Raises:
            Fenced: other holders kept winning the race for it.
        """
        for _ in range(_OPEN_ATTEMPTS):
            await self._recall()
            if self.finished:
                return
            opened = Opened(
                request_id=self._request_id, edge=self.edge, epoch=self.epoch, instance=self._instance, seq=self._count
            )
            try:
                self._last = await self._bus.append(self._subject, encode(opened), self._headers, expected=self._last)
            except Fenced:
                continue
            return
        raise Fenced(f"edge {self.edge} is contested")

    async def _recall(self) -> None:
        messages = await self._bus.read(self._subject)
        self.earlier = []
        self.epoch = 0
        self._last = messages[-1].sequence if messages else 0
        for message in messages:
            record = decode_record(message.body)
            self.epoch = max(self.epoch, record.epoch)
            if isinstance(record, End | Failed):
                self.finished = True
            elif not isinstance(record, Opened):
                self.earlier.append(record)
        self.epoch += 1
        self._count = len(self.earlier)

    async def send(self, kind: type[Record], **fields: Any) -> None:
        """Append a data record; request_id, edge, epoch and seq are filled in.

        Raises:
            Fenced: another holder has taken over, or the request is gone: stop without a word.
        """
        await self._append(
            kind(request_id=self._request_id, edge=self.edge, epoch=self.epoch, seq=self._count, **fields)
        )
        self._count += 1

    async def finish(self) -> None:
        """Append the end with the count of data records. Idempotent."""
        if not self.finished:
            await self._append(
                End(request_id=self._request_id, edge=self.edge, epoch=self.epoch, seq=self._count, count=self._count)
            )
            self.finished = True

    async def fail(self, failure: Failure) -> None:
        """Append an error as the end. Idempotent."""
        if not self.finished:
            await self._append(
                Failed(request_id=self._request_id, edge=self.edge, epoch=self.epoch, seq=self._count, failure=failure)
            )
            self.finished = True

    async def _append(self, record: Record) -> None:
        headers = {**self._headers, **sent_now()}
        self._last = await self._bus.append(self._subject, encode(record), headers, expected=self._last)


class EdgeReader:
    """The reading end: data records once each and in order, until the edge ends.

    Iteration raises the edge's own error if it failed, StageFailed if records are missing, and InputStarved if
    nothing comes for `idle_s`.
    """

    def __init__(
        self,
        bus: Bus,
        subject: str,
        *,
        edge: str,
        idle_s: float,
        arrived: Callable[[str, Mapping[str, str]], None] = lambda edge, headers: None,
    ) -> None:
        self.edge = edge
        self._arrived = arrived
        self._bus = bus
        self._subject = subject
        self._idle_s = idle_s
        self._log: Log | None = None
        self._order = EdgeOrder(edge)

    async def open(self) -> None:
        """Begin to listen; nothing written afterwards is missed."""
        self._log = await self._bus.follow(self._subject)

    async def close(self) -> None:
        if self._log is not None:
            await self._log.close()
            self._log = None

    async def __aiter__(self) -> AsyncIterator[Record]:
        if self._log is None:
            await self.open()
        assert self._log is not None
        messages = aiter(self._log)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._idle_s):
                        message = await anext(messages)
                except TimeoutError:
                    raise InputStarved(f"nothing came over edge {self.edge} for {self._idle_s:g} s") from None
                self._arrived(self.edge, message.headers)
                record = self._order.accept(decode_record(message.body))
                if record is not None:
                    yield record
                elif self._order.ended:
                    return
        finally:
            await self.close()


class EdgeOrder:
    """The rules of an edge, without I/O: which records count, and whether any is missing."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.ended = False
        self.epoch = 0
        self.next_seq = 0

    def accept(self, record: AnyRecord) -> Record | None:
        """The record if it is the next piece of data; None if it is not data or was seen already.

        Raises:
            OmnistageError: the record is the edge's error.
            StageFailed: a record before this one is missing.
        """
        if record.epoch < self.epoch:
            return None
        self.epoch = record.epoch
        if isinstance(record, Opened):
            return None
        if isinstance(record, Failed):
            self.ended = True
            raise to_error(record.failure)
        if isinstance(record, End):
            if record.count != self.next_seq:
                raise StageFailed(
                    f"edge {self.edge} ended after {record.count} records, of which {self.next_seq} arrived",
                    code="edge_incomplete",
                )
            self.ended = True
            return None
        if record.seq < self.next_seq:
            return None
        if record.seq > self.next_seq:
            raise StageFailed(
                f"edge {self.edge}: record {record.seq} came where {self.next_seq} was due", code="edge_incomplete"
            )
        self.next_seq += 1
        return record
