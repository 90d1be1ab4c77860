"""What the parts of the suite share: the fixtures, and the steps that their tests are written in."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from omnistage.transport import Bus, Claim, Log, Message, WorkQueue

PATIENCE_S = 20.0
STAGE, MODEL = "talker", "voice-a"
Pair = tuple[Bus, Bus]


class OpenBus(Protocol):
    """Opens a bus; keyword arguments are fields of BusOptions. The fixture closes what it opened."""

    async def __call__(self, namespace: str, **options: Any) -> Bus: ...


async def claimed(queue: WorkQueue) -> Claim:
    """The next item of a queue, awaited with patience."""
    async with asyncio.timeout(PATIENCE_S):
        return await queue.claim()


async def take(log: Log, count: int) -> list[Message]:
    """The next records of a log."""
    records: list[Message] = []
    async with asyncio.timeout(PATIENCE_S):
        async for record in log:
            records.append(record)
            if len(records) == count:
                break
    return records


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the check holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await check():  # noqa: ASYNC110 - what is awaited is the broker's state
            await asyncio.sleep(0.02)


async def write(bus: Bus, subject: str, bodies: list[bytes], expected: int = 0) -> list[int]:
    """Append records one after the other; their sequences."""
    sequences = []
    for body in bodies:
        expected = await bus.append(subject, body, {}, expected=expected)
        sequences.append(expected)
    return sequences


def bodies(records: list[Message]) -> list[bytes]:
    return [record.body for record in records]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [str(n).encode() for n in range(start, start + count)]


class Conformance:
    """The fixtures that every part of the suite uses; an implementation overrides the abstract ones."""

    @pytest.fixture
    def namespace(self) -> str:
        return f"t{uuid.uuid4().hex[:10]}"

    @pytest.fixture
    def open_bus(self) -> OpenBus:
        """Abstract: how this implementation opens a bus."""
        raise NotImplementedError

    @pytest.fixture
    async def bus_pair(self, open_bus: OpenBus, namespace: str) -> Pair:
        return await open_bus(namespace), await open_bus(namespace)

    def lose_next_live(self, log: Log) -> None:
        """Make the log's live path lose the next record, if it has a path that can lose something."""
        raise NotImplementedError

    async def dead_letters(self, bus: Bus) -> list[Message]:
        """All dead letters of the bus's namespace."""
        raise NotImplementedError
