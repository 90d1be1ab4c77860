"""One out edge of a request: its log, turned into events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from omnistage.contracts import (
    AudioDelta,
    AudioDone,
    EncodedReference,
    Payload,
    ReadRecord,
    Record,
    Redo,
    TextDelta,
    TextDone,
    UnknownRecord,
    encode,
)
from omnistage.errors import BusError, BusUnavailable, OmnistageError, StageFailed, TensorError
from omnistage.observability import get_logger
from omnistage.pipelines import Edge
from omnistage.runtime.broken import bury
from omnistage.runtime.edges import BAD_RECORD, MAX_REDOS, EdgeOrder, read_record
from omnistage.runtime.meta import seconds_since_sent
from omnistage.runtime.tasks import TaskBag
from omnistage.transport import Bus, Log, Message
from omnistage_gateway.dispatch.interface import Event, VoiceFeatures
from omnistage_gateway.dispatch.samples import SampleOrder, to_int16

_log = get_logger(__name__)

REDO_WAIT_S = 2.0
"""A redo is asked for again after so long: who held the edge may have died with the question."""
_ASKS = 3


class Plane(Protocol):
    """What an edge asks of the tensor plane; `omnistage.tensors.plane.TensorPlane` answers."""

    async def unpack(self, payload: Payload) -> NDArray[Any]: ...

    async def release(self, payload: Payload) -> None: ...

    async def forget(self, request_id: str) -> object: ...


class OutEdge:
    """Reads the log of an edge that ends at the gateway.

    Args:
        stage: service of the edge's source, for errors.
        subject: the log.
        hop: told each record's edge and the seconds since it was published.
        redone: told each time that samples were lost on their way and asked for again.
        skipped: told of each record of a kind that a later version brought.
        redo_wait_s: how long an answer to that may take.
    """

    def __init__(
        self,
        bus: Bus,
        plane: Plane,
        edge: Edge,
        *,
        stage: str,
        subject: str,
        request_id: str,
        hop: Callable[[str, float], None],
        redone: Callable[[], None] = lambda: None,
        skipped: Callable[[], None] = lambda: None,
        redo_wait_s: float = REDO_WAIT_S,
    ) -> None:
        self.edge = edge
        self._bus = bus
        self._plane = plane
        self._stage = stage
        self._subject = subject
        self._request_id = request_id
        self._hop = hop
        self._redone = redone
        self._skipped = skipped
        self._redo_wait_s = redo_wait_s
        self._redos = 0
        self._lost: TensorError | None = None
        self._asks = 0
        self._tasks = TaskBag("edge")
        self._order = EdgeOrder(edge.name)
        self._samples = SampleOrder()
        self._log: Log | None = None

    async def open(self) -> None:
        """Begin to listen, before the work is published; nothing written afterwards is missed."""
        self._log = await self._bus.follow(self._subject, fresh=True)

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        log, self._log = self._log, None
        await self._tasks.close()
        if log is not None:
            await log.close()

    async def events(self) -> AsyncGenerator[Event | None, None]:
        """What the edge delivers, until its end; None for a record that is progress but no news.

        Raises:
            OmnistageError: the edge's own error, records or samples that are missing, unreadable bytes.
        """
        assert self._log is not None, "open() comes first"
        messages = aiter(self._log)
        while not self._order.ended:
            try:
                message = await self._next(messages)
                event = await self._take(message)
            except OmnistageError as error:
                error.stage = error.stage or self._stage
                raise
            yield event

    async def _next(self, messages: AsyncIterator[Message]) -> Message:
        """The next message; while a redo is awaited, asks for it again if nothing comes."""
        if self._lost is None:
            return await _one(messages)
        arriving = self._tasks.spawn(_one(messages), "next")
        while True:
            done, _ = await asyncio.wait({arriving}, timeout=self._redo_wait_s)
            if done:
                message: Message = await arriving
                return message
            await self._ask()

    async def _take(self, message: Message) -> Event | None:
        read = await self._read(message)
        try:
            record = self._order.accept(read)
        except StageFailed as error:
            if self._lost is None or error.code != "edge_incomplete":
                raise
            # A holder that took over before the question reached it goes on behind the gap.
            self._order.redo(self._order.next_seq)
            await self._ask()
            return None
        if record is None:
            return None
        try:
            event = await self._event(record)
        except TensorError as error:
            await self._redo(record.seq, error)
            return None
        self._lost = None
        return event

    async def _redo(self, seq: int, error: TensorError) -> None:
        """Have the edge written again from a record on, whose bytes are lost."""
        self._lost, self._asks = error, 0
        self._redos += 1
        if self._redos > MAX_REDOS:
            raise self._given_up()
        _log.warning("redo", request_id=self._request_id, edge=self.edge.name, seq=seq, code=error.code)
        self._redone()
        self._order.redo(seq)
        await self._ask()

    async def _ask(self) -> None:
        self._asks += 1
        if self._asks > _ASKS:
            raise self._given_up()
        redo = Redo(request_id=self._request_id, edge=self.edge.name, seq=self._order.next_seq)
        try:
            await self._bus.send(self._bus.subjects.ctl_request(self._request_id), encode(redo))
        except BusError as error:
            _log.warning("cannot_ask_for_redo", request_id=self._request_id, code=error.code)

    def _given_up(self) -> StageFailed:
        """Its producer can make these samples again, so the same request may well succeed."""
        assert self._lost is not None
        failed = StageFailed(
            f"audio was lost on its way: {self._lost.message}", code=self._lost.code, stage=self._stage
        )
        failed.retryable = True
        return failed

    async def _read(self, message: Message) -> ReadRecord:
        """The record; one that is broken ends the edge, and is kept in class dead for people."""
        seconds = seconds_since_sent(message.headers)
        if seconds is not None:
            self._hop(self.edge.name, seconds)
        try:
            return read_record(message, self._request_id, self.edge.name, self.edge.carries)
        except StageFailed as error:
            self._skipped()
            await bury(self._bus, message, error.message)
            raise

    async def _event(self, record: Record) -> Event | None:
        if isinstance(record, UnknownRecord):
            self._skipped()
            return None
        if isinstance(record, AudioDelta):
            return await self._audio(record)
        if isinstance(record, TextDelta | TextDone | AudioDone):
            return record
        if isinstance(record, EncodedReference):
            return await self._features(record)
        raise StageFailed(f"the gateway has no use for {type(record).__name__}", code=BAD_RECORD, stage=self._stage)

    async def _audio(self, delta: AudioDelta) -> Event | None:
        """The samples as the gateway's own, their block given back.

        Raises:
            TensorError: the bytes are lost.
        """
        if self._samples.has(delta, math.prod(delta.payload.shape)):
            await self._release(delta.payload)
            return None
        samples = to_int16(await self._plane.unpack(delta.payload))
        await self._release(delta.payload)
        return self._samples.take(delta, samples)

    async def _features(self, record: EncodedReference) -> VoiceFeatures:
        """A recording's features as the gateway's own, their blocks given back.

        Raises:
            TensorError: the bytes are lost.
        """
        codes = await self._plane.unpack(record.codes)
        embedding = None if record.embedding is None else await self._plane.unpack(record.embedding)
        for payload in (record.codes, record.embedding):
            if payload is not None:
                await self._release(payload)
        return VoiceFeatures(codes, embedding)

    async def _release(self, payload: Payload) -> None:
        try:
            await self._plane.release(payload)
        except TensorError as error:
            # The block goes with its request or its lease.
            _log.warning("cannot_release", request_id=self._request_id, code=error.code)


async def _one(messages: AsyncIterator[Message]) -> Message:
    """The next message of a log, which ends only with the bus."""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        raise BusUnavailable("the gateway left the bus before the edge had ended", stage="gateway") from None
