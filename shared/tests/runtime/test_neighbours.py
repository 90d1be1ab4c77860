"""Neighbours know where everybody is, and whether anybody could be heard."""

from __future__ import annotations

import pytest

from omnistage.contracts import Presence
from omnistage.runtime.neighbours import RECOVERY_S, SILENCE_S, Neighbours
from omnistage.transport.memory import MemoryBroker, MemoryBus


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def presence(locality: str = "here") -> Presence:
    return Presence(
        service="gateway", instance="gw-1", state="ready", version="0", contract=1, pid=1, host="h", started=0.0,
        locality=locality,
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def neighbours(clock: Clock) -> Neighbours:
    return Neighbours(MemoryBus(MemoryBroker(), "t"), "here", clock)


async def test_before_anybody_was_heard_nobody_is_missed(neighbours: Neighbours, clock: Clock) -> None:
    clock.now += 100
    assert not neighbours.silent_lately()
    neighbours.note(presence())
    assert not neighbours.silent_lately()


async def test_signs_in_time_are_no_silence(neighbours: Neighbours, clock: Clock) -> None:
    for _ in range(5):
        neighbours.note(presence())
        clock.now += 0.9 * SILENCE_S
        assert not neighbours.silent_lately()


async def test_a_silence_is_one_until_a_while_after_it(neighbours: Neighbours, clock: Clock) -> None:
    neighbours.note(presence())
    clock.now += 1.1 * SILENCE_S
    assert neighbours.silent_lately()
    neighbours.note(presence())
    clock.now += 0.9 * RECOVERY_S
    neighbours.note(presence())
    assert neighbours.silent_lately()
    clock.now += 0.2 * RECOVERY_S
    assert not neighbours.silent_lately()


async def test_memory_is_shared_as_long_as_everybody_is_here(neighbours: Neighbours, clock: Clock) -> None:
    assert neighbours.share_memory("gateway")
    neighbours.note(presence())
    assert neighbours.share_memory("gateway")
    neighbours.note(presence("elsewhere"))
    assert not neighbours.share_memory("gateway")
    clock.now += 4.0
    assert neighbours.share_memory("gateway")
