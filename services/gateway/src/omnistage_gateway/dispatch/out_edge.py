"""One out edge of a request: its log, turned into events."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from omnistage.contracts import AudioDelta, Payload, Record, TextDelta, TextDone, decode_record
from omnistage.errors import BusUnavailable, OmnistageError, StageFailed, TensorError
from omnistage.pipelines import Edge
from omnistage.runtime.edges import EdgeOrder
from omnistage.runtime.meta import seconds_since_sent
from omnistage.transport import Bus, Log, Message
from omnistage_gateway.dispatch.interface import Event
from omnistage_gateway.dispatch.samples import SampleOrder, to_int16


class Plane(Protocol):
    """What the gateway asks of the tensor plane; `omnistage.tensors.plane.TensorPlane` answers."""

    async def unpack(self, payload: Payload) -> NDArray[Any]: ...

    async def release(self, payload: Payload) -> None: ...

    async def forget(self, request_id: str) -> object: ...


class OutEdge:
    """Reads the log of an edge that ends at the gateway.

    Args:
        stage: service of the edge's source, for errors.
        subject: the log.
        hop: told each record's edge and the seconds since it was published.
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
    ) -> None:
        self.edge = edge
        self._bus = bus
        self._plane = plane
        self._stage = stage
        self._subject = subject
        self._request_id = request_id
        self._hop = hop
        self._order = EdgeOrder(edge.name)
        self._samples = SampleOrder()
        self._log: Log | None = None

    async def open(self) -> None:
        """Begin to listen; nothing written afterwards is missed."""
        self._log = await self._bus.follow(self._subject)

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    async def events(self) -> AsyncGenerator[Event | None, None]:
        """What the edge delivers, until its end; None for a record that is progress but no news.

        Raises:
            OmnistageError: the edge's own error, records or samples that are missing, unreadable bytes.
        """
        assert self._log is not None, "open() comes first"
        async for message in self._log:
            try:
                record = self._order.accept(self._read(message))
                event = None if record is None else await self._event(record)
            except OmnistageError as error:
                error.stage = error.stage or self._stage
                raise
            yield event
            if self._order.ended:
                return
        raise BusUnavailable("the gateway left the bus before the edge had ended", stage="gateway")

    def _read(self, message: Message) -> Any:
        seconds = seconds_since_sent(message.headers)
        if seconds is not None:
            self._hop(self.edge.name, seconds)
        try:
            record = decode_record(message.body)
        except msgspec.MsgspecError as error:
            raise StageFailed(f"a record of edge {self.edge.name} cannot be read", code="bad_record") from error
        if record.request_id != self._request_id or record.edge != self.edge.name:
            raise StageFailed(f"a record of another edge lies in the log of {self.edge.name}", code="bad_record")
        return record

    async def _event(self, record: Record) -> Event | None:
        if not isinstance(record, self.edge.carries):
            raise StageFailed(
                f"edge {self.edge.name} does not carry {type(record).__name__}", code="bad_record", stage=self._stage
            )
        if isinstance(record, AudioDelta):
            return await self._audio(record)
        if isinstance(record, TextDelta | TextDone):
            return record
        raise StageFailed(f"the gateway has no use for {type(record).__name__}", code="bad_record", stage=self._stage)

    async def _audio(self, delta: AudioDelta) -> Event | None:
        """The samples as the gateway's own, their block given back."""
        count = math.prod(delta.payload.shape)
        try:
            if self._samples.has(delta, count):
                await self._plane.release(delta.payload)
                return None
            samples = to_int16(await self._plane.unpack(delta.payload))
            await self._plane.release(delta.payload)
        except TensorError as error:
            # Its producer could make these samples again, so the same request may well succeed.
            failed = StageFailed(f"audio was lost on its way: {error.message}", code=error.code, stage=self._stage)
            failed.retryable = True
            raise failed from error
        return self._samples.take(delta, samples)
