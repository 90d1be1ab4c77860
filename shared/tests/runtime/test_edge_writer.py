"""The writing end of an edge: who opens it holds it, whatever it assumed of the log."""

from __future__ import annotations

import time

import pytest

from omnistage.contracts import Opened, TextDelta, decode_record, encode
from omnistage.errors import Fenced
from omnistage.runtime.edges import EdgeWriter
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


def writer(bus: CountingBus, instance: str) -> EdgeWriter:
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
