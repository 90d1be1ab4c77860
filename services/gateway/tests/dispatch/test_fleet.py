"""Listening to presences on a bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnistage.config import ModelsFile
from omnistage.contracts import EngineStatus, Ping, Presence, decode_control, encode
from omnistage.transport import Message
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage_gateway.dispatch import fleet_table
from omnistage_gateway.dispatch.fleet import Fleet

MODELS = ModelsFile.model_validate(
    {
        "version": 1,
        "engines": {"llm": {"service": "thinker", "engine": "torch"}},
        "models": {"text": {"pipeline": "text", "nodes": {"thinker": "llm"}}},
    }
)


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(MemoryBroker(), "test")
    yield bus
    await bus.close()


async def say(bus: MemoryBus, state: Any = "ready", *, ready: bool = True) -> None:
    status = EngineStatus(engine="llm", ready=ready, slots=2, facts={"speed_max": 2.0})
    presence = Presence(
        service="thinker", instance="t1", state=state, version="0", contract=1, pid=1, host="h", started=0.0,
        engines=(status,),
    )  # fmt: skip
    await bus.send(bus.subjects.presence("thinker", "t1"), encode(presence))


async def test_it_asks_everybody_at_its_start_and_hears_the_answers(bus: MemoryBus) -> None:
    asked: list[Any] = []

    async def answer(message: Message) -> None:
        asked.append(decode_control(message.body))
        await say(bus)

    await bus.subscribe(bus.subjects.ctl_everyone(), answer)
    fleet = Fleet(bus, MODELS, "gw")
    assert fleet.ready() == (False, "not ready: text (engine 'llm' of the thinker: no instance)")
    await fleet.start()
    async with asyncio.timeout(5):
        await fleet.wait_changed()
    assert asked == [Ping()]
    assert fleet.ready() == (True, "")
    assert set(fleet.offered()) == {"text"}
    assert (fleet.capacity("llm"), dict(fleet.engine("llm").facts)) == (2, {"speed_max": 2.0})
    await fleet.close()


async def test_who_drains_is_offered_no_more_work_at_once(bus: MemoryBus) -> None:
    fleet = Fleet(bus, MODELS, "gw")
    changes: list[int] = []
    fleet.on_change(lambda: changes.append(fleet.capacity("llm")))
    await fleet.start()
    for state in ("ready", "ready", "draining"):
        await say(bus, state)
    async with asyncio.timeout(5):
        while changes != [2, 0]:
            await asyncio.sleep(0)
    assert fleet.missing(["llm"]) == "engine 'llm' of the thinker: t1: draining"
    await fleet.close()


async def test_the_silent_are_dropped_by_a_timer(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_table, "PRESENCE_LIMIT_S", 0.05)
    fleet = Fleet(bus, MODELS, "gw")
    await fleet.start()
    await say(bus)
    async with asyncio.timeout(5):
        await fleet.wait_changed()
        assert fleet.capacity("llm") == 2
        await fleet.wait_changed()
    assert fleet.capacity("llm") == 0
    await fleet.close()


async def test_what_is_no_presence_is_ignored(bus: MemoryBus) -> None:
    fleet = Fleet(bus, MODELS, "gw")
    await fleet.start()
    for body in (b"\xc1", b"", encode(Ping())):
        await bus.send(bus.subjects.presence("thinker", "t1"), body)
    await say(bus)
    async with asyncio.timeout(5):
        await fleet.wait_changed()
    assert fleet.capacity("llm") == 2
    assert bus.stats.errors == 0
    await fleet.close()
    await fleet.close()


async def test_after_closing_it_hears_nothing(bus: MemoryBus) -> None:
    fleet = Fleet(bus, MODELS, "gw")
    await fleet.start()
    await fleet.close()
    await say(bus)
    for _ in range(10):
        await asyncio.sleep(0)
    assert fleet.capacity("llm") == 0


@pytest.mark.parametrize("fields", [{"slots": -5}, {"slots": 10**6}, {"service_s": float("nan")}, {"queue": -1}])
async def test_absurd_presences_are_counted_and_offer_nothing(bus: MemoryBus, fields: dict[str, Any]) -> None:
    skipped: list[None] = []
    fleet = Fleet(bus, MODELS, "gw", skipped=lambda: skipped.append(None))
    await fleet.start()
    status = EngineStatus(**{"engine": "llm", "ready": True, "slots": 1, **fields})
    presence = Presence(
        service="thinker", instance="t2", state="ready", version="0", contract=1, pid=1, host="h", started=0.0,
        engines=(status,),
    )  # fmt: skip
    await bus.send(bus.subjects.presence("thinker", "t2"), encode(presence))
    await bus.send(bus.subjects.presence("thinker", "t1"), encode(presence))
    await bus.send(bus.subjects.presence("thinker", "t1"), b"\xff")
    async with asyncio.timeout(5):
        while len(skipped) < 3:
            await asyncio.sleep(0)
    assert fleet.capacity("llm") == 0
    await say(bus)
    async with asyncio.timeout(5):
        while fleet.capacity("llm") != 2:
            await asyncio.sleep(0)
    await fleet.close()
