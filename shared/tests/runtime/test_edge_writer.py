"""The writing end of an edge: who opens it holds it, whatever it assumed of the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from omnistage.contracts import Opened, ReadRecord, Released, TextDelta, decode_record, encode
from omnistage.errors import Fenced
from omnistage.runtime.edges import EdgeWriter
from omnistage.runtime.history import EdgeHistory
from omnistage.runtime.meta import Meta
from omnistage.transport import Message
from omnistage.transport.memory import MemoryBroker, MemoryBus

EDGE = "thinker-gateway"


class CountingBus(MemoryBus):
    """Counts looks at logs."""

    reads = 0

    async def read(self, subject: str, after: int = 0) -> list[Message]:
        self.reads += 1
        return await super().read(subject, after)


@pytest.fixture
async def bus() -> CountingBus:
    return CountingBus(MemoryBroker(), "t")


def writer(bus: MemoryBus, instance: str) -> EdgeWriter:
    subject = bus.subjects.out("thinker", "m", "r", EDGE)
    return EdgeWriter(bus, subject, request_id="r", edge=EDGE, instance=instance, meta=Meta(deadline=time.time() + 60))


async def test_a_fresh_log_is_opened_without_a_look_at_it(bus: CountingBus) -> None:
    first = writer(bus, "a")
    await first.open(fresh=True)
    assert (bus.reads, first.epoch, first.crashes, first.earlier) == (0, 1, 0, [])
    await first.send(TextDelta, text="x")
    await first.finish()
    assert first.finished


async def test_a_log_that_was_not_fresh_after_all_is_taken_over_as_ever(bus: CountingBus) -> None:
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    await first.send(TextDelta, text="x")
    await second.open(fresh=True)
    assert (second.epoch, second.crashes, len(second.earlier)) == (2, 1, 1)
    with pytest.raises(Fenced):
        await first.send(TextDelta, text="y")
    await second.send(TextDelta, text="y")
    records = [decode_record(message.body) for message in await MemoryBus.read(bus, second._subject)]
    assert [(type(record), record.epoch, record.seq) for record in records] == [
        (Opened, 1, 0),
        (TextDelta, 1, 0),
        (Opened, 2, 1),
        (TextDelta, 2, 1),
    ]


async def test_a_finished_log_is_left_as_it_is(bus: CountingBus) -> None:
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    await first.finish()
    length = len(await MemoryBus.read(bus, first._subject))
    await second.open(fresh=True)
    assert second.finished
    assert len(await MemoryBus.read(bus, first._subject)) == length


async def test_what_is_to_be_written_again_is_read_first(bus: CountingBus) -> None:
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    for text in "xyz":
        await first.send(TextDelta, text=text)
    await second.open(redo_from=1, fresh=True)
    assert (second.epoch, len(second.earlier)) == (2, 1)


async def test_a_second_attempt_to_open_assumes_nothing_of_the_first(bus: CountingBus) -> None:
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    await second.open(fresh=True)
    await second.open(fresh=True)
    assert second.epoch == 3
    assert (
        encode(Opened(request_id="r", edge=EDGE, epoch=3, seq=0, instance="b"))
        == (await MemoryBus.read(bus, second._subject))[-1].body
    )


class CutShort(MemoryBus):
    """Stores a record, but whoever appended it is cancelled before it hears so."""

    cut = False

    async def append(self, subject: str, body: bytes, headers: Mapping[str, str], *, expected: int) -> int:
        sequence = await super().append(subject, body, headers, expected=expected)
        if self.cut:
            self.cut = False
            raise asyncio.CancelledError
        return sequence


async def read(bus: MemoryBus, one: EdgeWriter) -> list[ReadRecord]:
    return [decode_record(message.body) for message in await MemoryBus.read(bus, one._subject)]


async def test_who_is_cancelled_while_it_opens_leaves_in_order_all_the_same() -> None:
    bus = CutShort(MemoryBroker(), "t")
    first = writer(bus, "a")
    bus.cut = True
    with pytest.raises(asyncio.CancelledError):
        await first.open(fresh=True)
    await first.release()
    assert [type(record) for record in await read(bus, first)] == [Opened, Released]
    assert EdgeHistory.of(await read(bus, first)).crashes == 0


async def test_who_is_cancelled_while_it_writes_leaves_in_order_all_the_same() -> None:
    bus = CutShort(MemoryBroker(), "t")
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    await first.send(TextDelta, text="x")
    bus.cut = True
    with pytest.raises(asyncio.CancelledError):
        await first.send(TextDelta, text="y")
    await first.release()
    assert [type(record) for record in await read(bus, first)] == [Opened, TextDelta, TextDelta, Released]
    await second.open()
    assert (second.crashes, len(second.earlier)) == (0, 2)


async def test_who_was_fenced_does_not_speak_for_its_successor() -> None:
    bus = CutShort(MemoryBroker(), "t")
    first, second = writer(bus, "a"), writer(bus, "b")
    await first.open(fresh=True)
    await second.open()
    with pytest.raises(Fenced):
        await first.release()
    # Nor one that lost the race for the same epoch.
    third = writer(bus, "c")
    third.epoch = second.epoch
    with pytest.raises(Fenced):
        await third.release()
    assert [type(record) for record in await read(bus, first)] == [Opened, Opened]
