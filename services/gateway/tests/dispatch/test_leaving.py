"""Clients that leave, at any moment: the request is stopped everywhere and nothing of it stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from omnistage.contracts import Cancel, Forget
from omnistage.errors import BusUnavailable, Cancelled
from omnistage.transport import Message
from omnistage.transport.memory import MemoryBus

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage


async def assert_clean(world: MemoryWorld) -> None:
    await world.dispatcher.settled()
    async with asyncio.timeout(5):
        # The stages are told by then, but may not have finished to listen.
        while world.plane.usage()["memory"][0]:
            await asyncio.sleep(0.001)
    assert world.left() == []
    assert world.followed() == []
    assert (world.dispatcher.running, world.dispatcher.waiting, world.dispatcher.clearing) == (0, 0, 0)


async def test_before_anybody_claimed_the_work_it_is_gone(world: MemoryWorld) -> None:
    async with world.run(world.speak(), "r1"):
        assert len(world.left()) == 1
    await assert_clean(world)
    await world.serve_all()
    await asyncio.sleep(0.01)
    assert world.claimed == []
    assert await world.tombstone("r1") == b"cancelled"
    assert ("finished", "voice", "cancelled") in [entry[:3] for entry in world.hooked]


async def test_while_it_streams_every_stage_is_told(omni: MemoryWorld) -> None:
    async with omni.run(omni.chat("word " * 50), "r1") as running:
        await anext(running.events())
    await omni.dispatcher.settled()
    assert omni.told(Cancel) == ["r1"]
    assert omni.told(Forget) == []
    assert len(omni.finished) < 3
    await assert_clean(omni)


async def test_who_leaves_after_the_last_record_was_read_has_not_cancelled(speech: MemoryWorld) -> None:
    async with speech.run(speech.speak("a"), "r1") as running:
        while not running.ended:
            await asyncio.sleep(0)
    await assert_clean(speech)
    assert await speech.tombstone("r1") == b"done"
    assert (speech.told(Cancel), speech.told(Forget)) == ([], ["r1"])


async def test_a_stage_that_did_not_see_the_tombstone_leaves_nothing_either(world: MemoryWorld) -> None:
    began = asyncio.Event()

    async def late(stage: Stage, work: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            # As if the record had been on its way while everything was purged.
            await asyncio.shield(stage.open("codec-gateway"))
            raise

    await world.serve("heart", late)
    async with world.run(world.speak(), "r1"):
        await began.wait()
    await assert_clean(world)


async def test_200_clients_that_leave_at_random_leave_nothing(make_world: Callable[..., Any]) -> None:
    noise = random.Random(11)
    async with make_world(slots=8, total=500, per_tenant=500) as world:
        await world.serve_all()
        finished = 0

        async def client(number: int) -> None:
            nonlocal finished
            plan = world.speak("abc") if number % 2 else world.chat("one two three")
            async with world.run(plan, f"r{number}") as running:
                async for _ in running.events():
                    pass
            finished += 1

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                task = group.create_task(client(number))
                if number % 5:
                    asyncio.get_running_loop().call_later(noise.uniform(0, 1.0), task.cancel)
        await assert_clean(world)
        assert 40 <= finished < 200, "every fifth stays, and of the others some leave early"
        started = {entry.partition(":")[2] for entry in world.claimed}
        for request_id in started:
            assert await world.tombstone(request_id) in (b"done", b"cancelled")
        assert len(await world.collect(world.speak("abc"), "after")) == 3, "every slot is free again"
        most = await asyncio.gather(*(world.collect(world.speak("x"), f"a{n}") for n in range(16)))
        assert all(len(events) == 1 for events in most)


async def test_the_tombstone_is_there_before_the_stages_are_told(world: MemoryWorld) -> None:
    found: list[bytes | None] = []

    async def look(message: Message) -> None:
        found.append(await world.tombstone("r1"))

    await world.bus.subscribe(world.bus.subjects.ctl_request("r1"), look)
    async with world.run(world.speak(), "r1"):
        pass
    await assert_clean(world)
    assert found == [b"cancelled"]


async def test_the_place_is_kept_until_the_stages_were_told(make_world: Callable[..., Any]) -> None:
    async with make_world(slots=1) as world:
        async with world.run(world.speak(), "r1"):
            pass
        async with world.run(world.speak(), "r2"):
            assert world.told(Cancel) == ["r1"]


class Flaky:
    """Fails a bus's methods while it is `away`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
        self.away = False
        self.calls = 0
        for name in methods:
            original = getattr(MemoryBus, name)

            async def call(bus: MemoryBus, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                self.calls += 1
                if self.away:
                    raise BusUnavailable("the broker is away")
                return await _original(bus, *args, **kwargs)

            monkeypatch.setattr(MemoryBus, name, call)


async def test_clearing_up_waits_for_a_broker_that_comes_back(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Flaky(monkeypatch, "purge_request", "send")
    async with world.run(world.speak(), "r1"):
        bus.away = True
    while bus.calls < 4:
        await asyncio.sleep(0.01)
    assert world.dispatcher.clearing == 1
    bus.away = False
    await assert_clean(world)
    assert world.told(Cancel) == ["r1"]
    assert not [entry for entry in world.hooked if entry[0] == "abandoned"]


async def test_clearing_up_without_a_broker_is_bounded_and_counted(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_world(clear_s=0.2) as world:
        bus = Flaky(monkeypatch, "purge_request", "send")
        async with world.run(world.speak(), "r1"):
            bus.away = True
        await world.dispatcher.settled()
        assert ("abandoned", "voice") in world.hooked
        assert world.dispatcher.running == world.dispatcher.clearing == 0
        bus.away = False
        await world.serve_all()
        assert len(await world.collect(world.speak("abc"))) == 3, "its place was given back"


async def test_a_finished_request_gives_its_place_back_before_it_is_cleared_up(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_world(slots=1) as world:
        await world.serve_all()
        bus = Flaky(monkeypatch, "purge_request")
        bus.away = True
        for number in range(3):
            assert len(await world.collect(world.speak("abc"), f"r{number}")) == 3
        assert world.dispatcher.clearing == 3
        bus.away = False
        await assert_clean(world)


async def test_a_broker_that_is_away_at_the_start_fails_the_request(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Flaky(monkeypatch, "publish_work")
    bus.away = True
    with pytest.raises(BusUnavailable):
        await world.collect(world.speak(), "r1")
    await assert_clean(world)
    assert await world.tombstone("r1") == b"cancelled"


async def test_a_task_that_is_cancelled_twice_still_clears_up(speech: MemoryWorld) -> None:
    async def client() -> None:
        async with speech.run(speech.speak("abc" * 10), "r1") as running:
            async for _ in running.events():
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(client())
        while not speech.claimed:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
    await assert_clean(speech)
    assert await speech.tombstone("r1") == b"cancelled"


async def test_who_waits_for_a_request_that_somebody_else_cancelled_is_told(world: MemoryWorld) -> None:
    async with world.run(world.speak(), "r1") as running:
        world.dispatcher.cancelled("another")
        world.dispatcher.cancelled("r1")
        with pytest.raises(Cancelled):
            await anext(running.events())
    await assert_clean(world)
    assert world.dispatcher.request_ids == ()


async def test_presence_names_the_requests_until_they_are_cleared_up(world: MemoryWorld) -> None:
    async with world.run(world.speak(), "r1"), world.run(world.speak(), "r2"):
        assert set(world.dispatcher.request_ids) == {"r1", "r2"}
    assert set(world.dispatcher.request_ids) == {"r1", "r2"}
    await assert_clean(world)
    assert world.dispatcher.request_ids == ()
