"""Whatever holders come and go on a log: every sample once and in order, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.contracts import AudioDelta, AudioDone, End, Inline, Opened, Payload, Record, encode
from omnistage.errors import BusUnavailable, OmnistageError
from omnistage.pipelines import SPEECH
from omnistage.transport import Bus, Message
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage_gateway.dispatch.interface import AudioPiece
from omnistage_gateway.dispatch.out_edge import OutEdge

(EDGE,) = SPEECH.outputs()


@dataclass
class ListedLog:
    """A log that holds what it holds and then ends."""

    records: list[Record]

    async def __aiter__(self) -> AsyncIterator[Message]:
        for sequence, record in enumerate(self.records, 1):
            yield Message("subject", encode(record), {}, sequence, sequence - 1)

    async def close(self) -> None:
        """Nothing to close."""

    async def follow(self, subject: str, after: int = 0, *, fresh: bool = False) -> ListedLog:
        return self


class InlinePlane:
    """Reads inline payloads; counts what is given back."""

    def __init__(self) -> None:
        self.released = 0

    async def unpack(self, payload: Payload) -> Any:
        assert isinstance(payload, Inline)
        return np.frombuffer(payload.data, payload.dtype).copy()

    async def release(self, payload: Payload) -> None:
        self.released += 1

    async def forget(self, request_id: str) -> int:
        return 0


def audio(epoch: int, seq: int, start: int, stop: int) -> AudioDelta:
    payload = Inline(data=np.arange(start, stop, dtype=np.int16).tobytes(), dtype="int16", shape=(stop - start,))
    return AudioDelta(
        request_id="r", edge=EDGE.name, epoch=epoch, seq=seq, payload=payload, sample_rate_hz=24000, offset=start
    )


def read(records: list[Record]) -> tuple[list[int], InlinePlane]:
    """All samples that the edge delivers."""
    plane = InlinePlane()

    async def run() -> list[int]:
        bus = cast("Bus", ListedLog(records))
        edge = OutEdge(bus, plane, EDGE, stage="codec", subject="s", request_id="r", hop=lambda edge, seconds: None)
        await edge.open()
        got: list[int] = []
        async for event in edge.events():
            if event is not None:
                assert isinstance(event, AudioPiece)
                got += event.samples.tolist()
        await edge.close()
        return got

    return asyncio.run(run()), plane


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Record], int]:
    """The log of an answer that several holders wrote, each going back a little, with stale and repeated records;
    and the number of its samples."""
    records: list[Record] = []
    position, seq = 0, 0
    holders = draw(st.integers(1, 4))
    for epoch in range(1, holders + 1):
        records.append(Opened(request_id="r", edge=EDGE.name, epoch=epoch, seq=seq, instance="i"))
        start = max(0, position - draw(st.integers(0, 20)))
        for _ in range(draw(st.integers(0, 4))):
            stop = start + draw(st.integers(0, 20))
            records.append(audio(epoch, seq, start, stop))
            if draw(st.booleans()):
                records.append(audio(epoch, draw(st.integers(0, seq)), start, stop))
            if epoch > 1 and draw(st.booleans()):
                records.append(audio(epoch - 1, seq + 1, stop, stop + 5))
            seq, start = seq + 1, stop
            position = max(position, stop)
    records.append(End(request_id="r", edge=EDGE.name, epoch=holders, seq=seq, count=seq))
    return records, position


@settings(max_examples=200, deadline=None)
@given(histories())
def test_holders_that_come_and_go_lose_and_repeat_nothing(history: tuple[list[Record], int]) -> None:
    records, samples = history
    got, plane = read(records)
    assert got == list(range(samples))
    count = records[-1]
    assert isinstance(count, End)
    assert plane.released == count.count, "each record's block is given back, dropped samples or not"


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_a_lost_record_is_never_passed_over(history: tuple[list[Record], int], data: st.DataObject) -> None:
    records, samples = history
    lost = data.draw(st.integers(0, len(records) - 1))
    outcome: str | list[int]
    try:
        outcome, _ = read(records[:lost] + records[lost + 1 :])
    except OmnistageError as error:
        outcome = error.code
    errors = ("edge_incomplete", "audio_gap", "bus_unavailable")
    assert outcome in (*errors, list(range(samples))), "whole if what was lost was a repetition, else an error"


async def test_why_the_sound_stopped_is_passed_on() -> None:
    done = AudioDone(request_id="r", edge=EDGE.name, epoch=1, seq=1, finish_reason="length")
    log = ListedLog(
        [
            Opened(request_id="r", edge=EDGE.name, epoch=1, instance="i"),
            audio(1, 0, 0, 5),
            done,
            End(request_id="r", edge=EDGE.name, epoch=1, seq=2, count=2),
        ]
    )
    edge = OutEdge(
        cast("Bus", log),
        InlinePlane(),
        EDGE,
        stage="codec",
        subject="s",
        request_id="r",
        hop=lambda edge, seconds: None,
    )
    await edge.open()
    events = [event async for event in edge.events() if event is not None]
    await edge.close()
    assert isinstance(events[0], AudioPiece)
    assert events[1:] == [done]


def test_a_log_that_stops_without_an_end_is_no_success() -> None:
    with pytest.raises(BusUnavailable) as failed:
        read([Opened(request_id="r", edge=EDGE.name, epoch=1, instance="i"), audio(1, 0, 0, 5)])
    assert failed.value.stage == "gateway"


@pytest.mark.parametrize(
    "broken",
    [
        audio(2**40, 0, 0, 10),
        audio(1, -1, 0, 10),
        audio(1, 0, -5, 5),
        msgspec.structs.replace(audio(1, 0, 0, 10), sample_rate_hz=0),
        msgspec.structs.replace(audio(1, 0, 0, 10), request_id="another"),
        msgspec.structs.replace(audio(1, 0, 0, 10), payload=Inline(data=b"", dtype="int16", shape=(-5, -2))),
        End(request_id="r", edge=EDGE.name, epoch=-3, count=0),
    ],
    ids=lambda record: repr(record)[:60],
)
async def test_a_broken_record_is_counted_and_kept_for_people(broken: Record) -> None:
    bus = MemoryBus(broker := MemoryBroker(), "t")
    subject = bus.subjects.out("codec", "wave", "r", EDGE.name)
    await bus.append(subject, encode(broken), {}, expected=0)
    skipped: list[None] = []
    edge = OutEdge(
        bus, InlinePlane(), EDGE, stage="codec", subject=subject, request_id="r", hop=lambda edge, seconds: None,
        skipped=lambda: skipped.append(None),
    )  # fmt: skip
    await edge.open()
    with pytest.raises(OmnistageError) as failed:
        _ = [event async for event in edge.events()]
    await edge.close()
    assert (failed.value.code, failed.value.status, failed.value.stage) == ("bad_record", 500, "codec")
    assert len(skipped) == 1
    assert [(kept.subject, kept.body) for kept in broker.dead] == [
        (bus.subjects.dead("codec", "wave", "r"), encode(broken))
    ]
    await bus.close()
