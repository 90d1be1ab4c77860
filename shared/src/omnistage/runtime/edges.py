"""A request's edges: writing one as the only holder, reading one exactly once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from omnistage.contracts import (
    End,
    Failed,
    Failure,
    Opened,
    ReadRecord,
    Record,
    Redo,
    Released,
    UnknownRecord,
    decode_record,
    encode,
)
from omnistage.errors import BusUnavailable, Fenced, InputStarved, StageFailed
from omnistage.runtime.broken import Broken, bury, check_record
from omnistage.runtime.failures import to_error
from omnistage.runtime.history import EdgeHistory
from omnistage.runtime.meta import Meta, sent_now
from omnistage.runtime.patience import patiently, with_room
from omnistage.transport import Bus, Log, Message

_OPEN_ATTEMPTS = 8

MAX_REDOS = 3
"""How often a reader has lost payloads written again."""

BAD_RECORD = "bad_record"
"""Code of the failure of an edge in whose log something broken lies."""

_ALWAYS = (Opened, Released, End, Failed, UnknownRecord)
"""What any edge may hold beside its data."""

RecordT = TypeVar("RecordT", bound=Record)


class EdgeWriter:
    """The writing end of an edge's log. Opening it fences every holder before this one."""

    def __init__(self, bus: Bus, subject: str, *, request_id: str, edge: str, instance: str, meta: Meta) -> None:
        self.edge = edge
        self.epoch = 0
        self.finished = False
        self.crashes = 0
        """Holders before this one that ended without a word."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called after each data record."""
        self.earlier: list[Record] = []
        """Data records that earlier holders wrote, in order: what a resumed stage must not emit again."""
        self._bus = bus
        self._subject = subject
        self._request_id = request_id
        self._instance = instance
        self._headers = meta.to_headers()
        self._last = 0
        self._count = 0

    async def open(self, redo_from: int | None = None, *, fresh: bool = False) -> None:
        """Read what the log holds and take it over; a finished log is left as it is.

        Args:
            redo_from: take it over in any case, and write data records from this position on again.
            fresh: nobody is likely to have written yet, so try that first and read only if it is refused.

        Raises:
            Fenced: other holders kept winning the race for it.
        """
        if fresh and redo_from is None:
            self.epoch, self._last, self._count = 1, 0, 0
            if await self._opened():
                return
        for _ in range(_OPEN_ATTEMPTS):
            await self._recall(redo_from)
            if self.finished or await self._opened():
                return
        raise Fenced(f"edge {self.edge} is contested")

    async def _opened(self) -> bool:
        """Whether the log is ours; not if it holds more than we know of."""
        try:
            await self._append(self._record(Opened, instance=self._instance))
        except Fenced:
            return False
        return True

    async def _recall(self, redo_from: int | None) -> None:
        messages = await self._bus.read(self._subject)
        history = EdgeHistory.of([read_record(message, self._request_id, self.edge) for message in messages])
        if redo_from is not None:
            history.rewind(redo_from)
        self._last = messages[-1].sequence if messages else 0
        self.epoch = history.epoch + 1
        self.finished = history.finished
        self.crashes = history.crashes
        self.earlier = history.data
        self._count = len(history.data)

    async def send(self, kind: type[Record], **fields: Any) -> None:
        """Append a data record; request_id, edge, epoch and seq are filled in.

        Raises:
            Fenced: another holder has taken over, or the request is gone: stop without a word.
            QueueFull: the log stream has had no room for a while.
        """
        await self._append(self._record(kind, **fields))
        self._count += 1
        self.on_progress()

    async def finish(self) -> None:
        """Append the end with the count of data records. Idempotent."""
        if not self.finished:
            await self._append(self._record(End, count=self._count))
            self.finished = True

    async def fail(self, failure: Failure, *, purged: bool = False) -> None:
        """Append an error as the end. Idempotent.

        Args:
            purged: the log was emptied before; the error is all that it will hold.

        Raises:
            Fenced: as for `send`.
            QueueFull: there is no room even for this.
        """
        if purged:
            self._last, self.finished = 0, False
        if not self.finished:
            try:
                await self._append(self._record(Failed, failure=failure))
            except Fenced:
                if self.epoch:
                    raise
                # Never taken over, because something broken lies in it: whoever reads it finds that.
            self.finished = True

    async def release(self) -> None:
        """Say that this holder gives the edge up in order, if it is still open."""
        if not self.epoch or self.finished:
            return
        try:
            await self._append(self._record(Released))
        except Fenced:
            if not await self._wrote_more_than_it_knows():
                raise
            await self._append(self._record(Released))

    async def _wrote_more_than_it_knows(self) -> bool:
        """Whether what the log holds beyond the last record is this holder's own: cancelled before it heard so.

        The broker handles one connection's messages in order, so whatever had been sent is in the log by now.
        """
        messages = await self._bus.read(self._subject, after=self._last)
        for message in messages:
            record = read_record(message, self._request_id, self.edge)
            if record.epoch != self.epoch or (isinstance(record, Opened) and record.instance != self._instance):
                return False
            self._last = message.sequence
        return bool(messages)

    def _record(self, kind: type[RecordT], **fields: Any) -> RecordT:
        return kind(request_id=self._request_id, edge=self.edge, epoch=self.epoch, seq=self._count, **fields)

    async def _append(self, record: Record) -> None:
        """Append, however long the broker is away; the request's deadline ends the wait.

        When the broker does not answer it may have stored the record all the same: the log tells.
        """
        body, headers = encode(record), {**self._headers, **sent_now()}
        while True:
            try:
                self._last = await with_room(
                    lambda: self._bus.append(self._subject, body, headers, expected=self._last)
                )
            except BusUnavailable:
                stored = await patiently(lambda: self._bus.read(self._subject, after=self._last))
                if not stored:
                    continue
                if len(stored) > 1 or stored[0].body != body:
                    raise Fenced(f"edge {self.edge} was taken over while the broker was away") from None
                self._last = stored[0].sequence
            return


class EdgeReader:
    """The reading end: data records once each and in order, until the edge ends.

    Records of kinds that a later version brought are skipped. Iteration raises the edge's own error if it failed,
    StageFailed if records are missing or cannot be read, and InputStarved if nothing comes for `idle_s`.
    """

    def __init__(
        self,
        bus: Bus,
        subject: str,
        *,
        request_id: str,
        edge: str,
        idle_s: float,
        arrived: Callable[[str, Mapping[str, str]], None] = lambda edge, headers: None,
        skipped: Callable[[], None] = lambda: None,
        carries: tuple[type[Record], ...] | None = None,
    ) -> None:
        self.edge = edge
        self._carries = carries
        self._arrived = arrived
        self._skipped = skipped
        self._asked = 0
        self._request_id = request_id
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

    async def ask_again(self, seq: int) -> None:
        """The payload of this record is gone: have it and all after it written again, and read on from there.

        Raises:
            StageFailed: that was asked for too often.
        """
        self._asked += 1
        if self._asked > MAX_REDOS:
            raise StageFailed(f"edge {self.edge}: payloads were lost again and again", code="payload_lost")
        self._order.redo(seq)
        redo = Redo(request_id=self._request_id, edge=self.edge, seq=seq)
        await patiently(lambda: self._bus.send(self._bus.subjects.ctl_request(self._request_id), encode(redo)))

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
                record = self._order.accept(await self._checked(message))
                if isinstance(record, UnknownRecord):
                    self._skipped()
                elif record is not None:
                    yield record
                elif self._order.ended:
                    return
        finally:
            await self.close()

    async def _checked(self, message: Message) -> ReadRecord:
        """The record; one that is broken ends the edge, and is kept in class dead for people."""
        try:
            return read_record(message, self._request_id, self.edge, self._carries)
        except StageFailed as error:
            self._skipped()
            await bury(self._bus, message, error.message)
            raise


def read_record(
    message: Message, request_id: str, edge: str, carries: tuple[type[Record], ...] | None = None
) -> ReadRecord:
    """The record in a message of an edge's log.

    Args:
        carries: kinds of data that the edge may hold; None for any.

    Raises:
        StageFailed: with code `BAD_RECORD`: it cannot be read, is of another edge or kind, or its numbers are absurd.
    """
    try:
        record = decode_record(message.body)
        check_record(record, request_id, edge)
    except msgspec.MsgspecError as error:
        raise StageFailed(f"a record of edge {edge} cannot be read", code=BAD_RECORD) from error
    except Broken as error:
        raise StageFailed(f"{error} (edge {edge})", code=BAD_RECORD) from error
    if carries is not None and not isinstance(record, (*carries, *_ALWAYS)):
        raise StageFailed(f"edge {edge} does not carry {type(record).__name__}", code=BAD_RECORD)
    return record


class EdgeOrder:
    """The rules of an edge, without I/O: which records count, and whether any is missing."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.ended = False
        self.epoch = 0
        self.next_seq = 0

    def redo(self, seq: int) -> None:
        """From now on only what a later holder writes counts, beginning with this position."""
        self.epoch += 1
        self.next_seq = seq
        self.ended = False

    def accept(self, record: ReadRecord) -> Record | None:
        """The record if it is the next piece of data; None if it is not data or was seen already.

        Raises:
            OmnistageError: the record is the edge's error.
            StageFailed: a record before this one is missing.
        """
        if record.epoch < self.epoch:
            return None
        self.epoch = record.epoch
        if isinstance(record, Opened | Released):
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
