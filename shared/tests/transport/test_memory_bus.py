"""The memory bus passes the conformance suite."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnistage.testing.bus_conformance import BusConformance, OpenBus
from omnistage.transport import Bus, BusOptions, Log, Message, connect
from omnistage.transport.memory import MemoryBus


class TestMemoryBus(BusConformance):
    @pytest.fixture
    async def open_bus(self) -> AsyncIterator[OpenBus]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_one(namespace: str, **options: Any) -> Bus:
                bus = await connect("memory://", namespace, name="test", options=BusOptions(**options))
                stack.push_async_callback(bus.close)
                return bus

            yield open_one

    def lose_next_live(self, log: Log) -> None:
        """A cursor over a list has nothing to lose."""

    async def dead_letters(self, bus: Bus) -> list[Message]:
        assert isinstance(bus, MemoryBus)
        return bus.broker.dead


async def test_a_namespace_is_forgotten_with_its_last_bus() -> None:
    first = await connect("memory://", "forgetful", name="a")
    second = await connect("memory://", "forgetful", name="b")
    subject = first.subjects.feed("talker", "m", "r1", "e")
    await first.append(subject, b"x", {}, expected=0)
    await first.close()
    assert len(await second.read(subject)) == 1
    await second.close()
    third = await connect("memory://", "forgetful", name="c")
    assert await third.read(subject) == []
    await third.close()
