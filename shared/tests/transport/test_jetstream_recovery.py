"""The JetStream bus through crashes of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnistage.errors import BusUnavailable, Fenced
from omnistage.testing.bus_conformance.steps import (
    MODEL,
    PATIENCE_S,
    STAGE,
    bodies,
    claimed,
    eventually,
    numbered,
    take,
)
from omnistage.testing.bus_conformance.steps import write as write_records
from omnistage.testing.servers import NatsServer, nats_server
from omnistage.transport import Bus, BusOptions, Topology, connect

pytestmark = pytest.mark.integration


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as running:
        yield running


@pytest.fixture
async def buses(server: NatsServer) -> AsyncIterator[tuple[Bus, Bus]]:
    async with contextlib.AsyncExitStack() as stack:
        opened: list[Bus] = []
        for name in ("a", "b"):
            opened.append(await open_bus(server, name))
            stack.push_async_callback(opened[-1].close)
            await opened[-1].ensure(Topology.of("t", [(STAGE, MODEL)]))
        yield opened[0], opened[1]


async def open_bus(server: NatsServer, name: str, **options: Any) -> Bus:
    return await connect(server.url, "t", name=name, options=BusOptions(**({"timeout_s": 15.0} | options)))


async def crash(server: NatsServer, away_s: float = 0.3, *, politely: bool = False) -> None:
    """kill -9 (politely: SIGTERM), and start again on the same port and store."""
    if politely:
        await asyncio.to_thread(server.stop)
    else:
        server.kill()
    await asyncio.sleep(away_s)
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("politely", [False, True])
async def test_everything_goes_on_after_a_crash(server: NatsServer, buses: tuple[Bus, Bus], politely: bool) -> None:
    a, b = buses
    feed = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
    for n in range(3):
        await a.publish_work(a.subjects.work(STAGE, MODEL, f"r{n}"), b"%d" % n, {})
    queue = await b.work_queue(STAGE, MODEL)
    held = await claimed(queue)
    sequences = await write_records(a, feed, numbered(5))
    log = await b.follow(feed)
    assert bodies(await take(log, 2)) == numbered(2)
    store = await a.key_value("jobs")
    await store.put("x", b"1")

    await crash(server, politely=politely)

    await write_records(a, feed, numbered(5, 5), sequences[-1])
    assert bodies(await take(log, 8)) == numbered(8, 2)
    await held.ack()
    rest = [await claimed(queue), await claimed(queue)]
    assert {claim.message.body for claim in rest} == {b"1", b"2"}
    for claim in rest:
        await claim.ack()
    value = await store.get("x")
    assert value is not None
    assert value[0] == b"1"
    assert a.stats.reconnects == 1


async def test_a_waiting_claim_and_a_listener_survive(server: NatsServer, buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    queue = await b.work_queue(STAGE, MODEL)
    heard = asyncio.Event()

    async def listen(message: object) -> None:
        heard.set()

    await b.subscribe(b.subjects.ctl_everyone(), listen)
    back = [asyncio.Event(), asyncio.Event()]
    for bus, event in zip(buses, back, strict=True):

        async def note(event: asyncio.Event = event) -> None:
            event.set()

        bus.on_reconnect(note)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(queue.claim())
        await asyncio.sleep(0.05)
        await crash(server)
        for event in back:
            await event.wait()
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"late", {})
        await a.send(a.subjects.ctl_everyone(), b"")
        await heard.wait()
    assert waiting.result().message.body == b"late"


async def test_a_live_holder_keeps_its_item_though_the_broker_was_away_for_long(
    server: NatsServer, buses: tuple[Bus, Bus]
) -> None:
    """A broker that comes back takes every holder for dead that it did not hear for the time of its own absence."""
    a, b = buses
    queue, other = await a.work_queue(STAGE, MODEL), await b.work_queue(STAGE, MODEL)
    await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"held", {})
    held = await claimed(queue)

    async def hold() -> None:
        while True:
            await asyncio.sleep(0.4)
            await held.in_progress()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        holding = group.create_task(hold())
        waiting = group.create_task(other.claim())
        await crash(server, 2.5)
        done, _ = await asyncio.wait({waiting}, timeout=4.0)
        assert not done, "an item was taken from its live holder"
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r2"), b"new", {})
        assert (await waiting).message.body == b"new"
        holding.cancel()
        assert (await other.claim()).message.body == b"held"


async def test_a_writer_and_a_reader_through_three_crashes(server: NatsServer, buses: tuple[Bus, Bus]) -> None:
    """Appends that were under way when the connection broke are sent again, and none is there twice."""
    a, b = buses
    feed = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
    written = 0

    async def write_on() -> None:
        nonlocal written
        expected = 0
        for body in numbered(3000):
            expected = await a.append(feed, body, {}, expected=expected)
            written += 1

    log = await b.follow(feed)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(write_on())
        reading = group.create_task(take(log, 3000))
        for at in (300, 1200, 2100):

            async def reached(at: int = at) -> bool:
                return written >= at

            await eventually(reached)
            await crash(server, 0.1)
    assert bodies(reading.result()) == numbered(3000)
    assert bodies(await b.read(feed)) == numbered(3000)
    assert a.stats.fenced == 0


async def test_a_fence_holds_across_a_crash(server: NatsServer, buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    feed = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
    (last,) = await write_records(a, feed, [b"0"])
    await b.append(feed, b"opened", {}, expected=last)
    await crash(server)
    with pytest.raises(Fenced):
        await a.append(feed, b"zombie", {}, expected=last)
    assert bodies(await a.read(feed)) == [b"0", b"opened"]


async def test_streams_come_back_when_the_store_is_lost(server: NatsServer, buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    feed = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
    store = await a.key_value("jobs")
    queue = await b.work_queue(STAGE, MODEL)
    server.kill()
    shutil.rmtree(server.store / "jetstream")
    await asyncio.to_thread(server.start)
    await write_records(a, feed, [b"0"])
    await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
    await store.put("x", b"1")
    assert (await claimed(queue)).message.body == b"x"
    assert bodies(await b.read(feed)) == [b"0"]


async def test_methods_raise_while_the_broker_stays_away(server: NatsServer) -> None:
    bus = await open_bus(server, "a", timeout_s=0.5)
    feed = bus.subjects.feed(STAGE, MODEL, "r1", "e")
    log = await bus.follow(feed)
    store = await bus.key_value("jobs")
    server.kill()
    for attempt in (
        lambda: bus.append(feed, b"", {}, expected=0),
        lambda: bus.read(feed),
        lambda: bus.publish_work(bus.subjects.work(STAGE, MODEL, "r1"), b"", {}),
        lambda: bus.purge_request("r1"),
        lambda: bus.send(bus.subjects.ctl_everyone(), b""),
        lambda: store.get("x"),
    ):
        with pytest.raises(BusUnavailable):
            await attempt()
    assert not bus.connected
    await asyncio.to_thread(server.start)

    async def back() -> bool:
        return bus.connected

    await eventually(back)
    await write_records(bus, feed, [b"0"])
    assert bodies(await take(log, 1)) == [b"0"]
    await bus.close()


async def test_closing_while_the_broker_is_away(server: NatsServer) -> None:
    bus = await open_bus(server, "a", timeout_s=0.5)
    await bus.work_queue(STAGE, MODEL)
    await bus.follow(bus.subjects.feed(STAGE, MODEL, "r1", "e"))
    server.kill()

    async def gone() -> bool:
        return not bus.connected

    await eventually(gone)
    async with asyncio.timeout(PATIENCE_S):
        await bus.close()


async def connected(bus: Bus, wanted: bool, *, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while bus.connected is not wanted:
            await asyncio.sleep(0.05)


async def test_a_broker_that_is_silent_is_noticed_though_the_connection_stands(
    server: NatsServer, buses: tuple[Bus, Bus]
) -> None:
    bus = buses[0]
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # A line that was cut looks the same: nothing is refused, nothing arrives.
        await connected(bus, False, within_s=8)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await connected(bus, True, within_s=PATIENCE_S)
    assert bus.stats.reconnects == 1
    bucket = await bus.key_value("b")
    await bucket.put("k", b"v")
    entry = await bucket.get("k")
    assert entry is not None
    assert entry[0] == b"v"
