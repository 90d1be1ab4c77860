"""Whether all readers share our memory: learned from presences, the clock in the test's hands."""

from __future__ import annotations

import pytest

from omnistage.contracts import EngineStatus, Presence
from omnistage.runtime.neighbours import GONE_AFTER_S, Neighbours
from omnistage.transport.memory import MemoryBroker, MemoryBus

HERE, THERE = "here", "there"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def neighbours(clock: Clock) -> Neighbours:
    return Neighbours(MemoryBus(MemoryBroker(), "t"), HERE, clock)


def codec(instance: str, locality: str) -> Presence:
    return Presence(
        service="codec",
        instance=instance,
        state="ready",
        version="1",
        contract=1,
        pid=1,
        host="h",
        started=0.0,
        locality=locality,
        engines=(EngineStatus(engine="wave", ready=True, slots=1),),
    )


def hear(neighbours: Neighbours, clock: Clock, seconds: float, *who: Presence) -> None:
    """These speak every second."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 1.0
        for presence in who:
            neighbours.note(presence)


def test_one_reader_elsewhere_is_enough(neighbours: Neighbours) -> None:
    assert neighbours.share_memory("wave")
    neighbours.note(codec("near", HERE))
    assert neighbours.share_memory("wave")
    neighbours.note(codec("far", THERE))
    assert not neighbours.share_memory("wave")
    assert neighbours.share_memory("another")


def test_who_is_silent_while_others_speak_is_gone(neighbours: Neighbours, clock: Clock) -> None:
    near = codec("near", HERE)
    hear(neighbours, clock, 2, near, codec("far", THERE))
    hear(neighbours, clock, 3, near)
    assert not neighbours.share_memory("wave")
    hear(neighbours, clock, 1, near)
    assert neighbours.share_memory("wave")


@pytest.mark.parametrize("cut_s", [3.0, 60.0])
def test_who_was_there_when_the_line_was_cut_is_there_still(neighbours: Neighbours, clock: Clock, cut_s: float) -> None:
    near, far = codec("near", HERE), codec("far", THERE)
    hear(neighbours, clock, 2, near, far)
    clock.now += cut_s
    assert not neighbours.share_memory("wave")
    neighbours.note(near)
    assert not neighbours.share_memory("wave")
    hear(neighbours, clock, GONE_AFTER_S + 1, near)
    assert neighbours.share_memory("wave")
