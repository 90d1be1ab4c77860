"""Gateways keep one another's promises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from omnistage.config import ModelsFile
from omnistage.contracts import EngineStatus, Presence, Promises, decode_control, encode
from omnistage.transport import Message
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage_gateway.dispatch import promises as module
from omnistage_gateway.dispatch.bookings import Bookings
from omnistage_gateway.dispatch.fleet import Fleet
from omnistage_gateway.dispatch.promises import MOST_AT_ONCE, SharedPromises

MODELS = ModelsFile.model_validate(
    {
        "version": 1,
        "engines": {"llm": {"service": "thinker", "engine": "torch"}},
        "models": {"text": {"pipeline": "text", "nodes": {"thinker": "llm"}}},
    }
)


class Gateway:
    """The part of a gateway that promises."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name = name
        self.bus = MemoryBus(broker, "test")
        self.fleet = Fleet(self.bus, MODELS, name)
        self.promises = SharedPromises(self.bus, self.fleet, time.monotonic)
        self.bookings = Bookings(time.monotonic, self.promises)
        self.wanted: dict[str, dict[str, float]] = {}

    def wants(self) -> dict[str, dict[str, float]]:
        return self.wanted

    async def announce(self) -> None:
        presence = Presence(
            service="gateway", instance=self.name, state="ready", version="0", contract=1, pid=1, host="h", started=0.0
        )
        await self.bus.send(self.bus.subjects.presence("gateway", self.name), encode(presence))


@asynccontextmanager
async def running(*names: str) -> AsyncIterator[list[Gateway]]:
    broker = MemoryBroker()
    gateways = [Gateway(broker, name) for name in names]
    for gateway in gateways:
        await gateway.fleet.start()
        await gateway.promises.start(gateway.bookings, gateway.wants)
    for gateway in gateways:
        await gateway.announce()
    await until(lambda: all(gateway.promises.gateways == len(names) for gateway in gateways))
    yield gateways
    for gateway in gateways:
        await gateway.promises.close()
        await gateway.fleet.close()
        await gateway.bus.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_promise_of_one_is_kept_by_the_other_once() -> None:
    async with running("a", "b") as (one, other):
        one.bookings.book("k", "t", ("e",), 1.0, 0.0)
        await until(lambda: other.bookings.wait_s("k") is not None)
        wait_s = other.bookings.wait_s("k")
        assert wait_s is not None
        assert 0.5 < wait_s <= 1.0
        assert not other.bookings.claim("k"), "too early there as here"
        await asyncio.sleep(wait_s)
        assert other.bookings.claim("k")
        await until(lambda: not len(one.bookings))
        assert not one.bookings.claim("k")
        assert one.bookings.kept == 1.0


async def test_the_room_for_all_promises_is_shared_by_the_gateways() -> None:
    async with running("a", "b") as (one, other):
        for number in range(6):
            one.bookings.book(f"k{number}", "t", ("e",), 1.0, 0.0)
        await until(lambda: len(other.bookings) == 6)
        assert one.bookings.reserved("e", 2.0) == other.bookings.reserved("e", 2.0) == 3
        assert other.bookings.tenants() == set(), "the other one's promises do not count against a key here"


async def test_gateways_divide_the_slots_by_what_comes_to_them() -> None:
    async with running("a", "b") as (one, other):
        status = EngineStatus(engine="llm", ready=True, slots=8, service_s=0.1)
        presence = Presence(
            service="thinker", instance="t1", state="ready", version="0", contract=1, pid=1, host="h", started=0.0,
            engines=(status,),
        )  # fmt: skip
        await one.bus.send(one.bus.subjects.presence("thinker", "t1"), encode(presence))
        await until(lambda: one.fleet.capacity("llm") == other.fleet.capacity("llm") == 4)
        one.wanted = {"llm": {"t": 30.0}}
        await until(lambda: (one.fleet.capacity("llm"), other.fleet.capacity("llm")) == (7, 1))
        assert (one.promises.part("llm"), other.promises.part("llm")) == (7 / 8, 1 / 8)


async def test_many_at_once_are_told_in_a_few_messages() -> None:
    count = 2 * MOST_AT_ONCE + 1
    async with running("a", "b") as (one, other):
        sizes: list[int] = []

        async def listen(message: Message) -> None:
            if booked := decode_control(message.body).booked:
                sizes.append(len(booked))

        await other.bus.subscribe(other.bus.subjects.promises(), listen)
        for number in range(count):
            one.bookings.book(f"k{number}", "t", ("e",), 1.0, 0.0)
        await until(lambda: len(other.bookings) == count)
        assert sizes == [MOST_AT_ONCE, MOST_AT_ONCE, 1]
        one.bookings.book("later", "t", ("e",), 1.0, 0.0)
        await until(lambda: len(other.bookings) == count + 1)


async def test_alone_it_tells_nobody() -> None:
    async with running("a") as (one,):
        heard: list[Any] = []

        async def listen(message: Message) -> None:
            heard.append(message)

        await one.bus.subscribe(one.bus.subjects.promises(), listen)
        one.bookings.book("k", "t", ("e",), 1.0, 0.0)
        await asyncio.sleep(2 * module.DELAY_S)
        assert heard == []
        assert len(one.bookings) == 1


async def test_what_waits_to_be_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT", 3)
    async with running("a", "b") as (one, other):
        for number in range(5):
            one.bookings.book(f"k{number}", "t", ("e",), 1.0, 0.0)
        await until(lambda: len(other.bookings) == 3)
        await asyncio.sleep(2 * module.DELAY_S)
        assert len(other.bookings) == 3
        assert len(one.bookings) == 5


async def test_what_is_no_promise_is_ignored() -> None:
    async with running("a", "b") as (one, other):
        await one.bus.send(one.bus.subjects.promises(), b"\xc1")
        await one.bus.send(one.bus.subjects.promises(), encode(Promises(gateway="b", claimed=("k",))))
        one.bookings.book("k", "t", ("e",), 1.0, 0.0)
        await until(lambda: len(other.bookings) == 1)
