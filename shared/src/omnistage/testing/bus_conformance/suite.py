"""The whole suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from omnistage.errors import BusUnavailable, ConfigError, MessageTooLarge
from omnistage.testing.bus_conformance.logs import LogConformance
from omnistage.testing.bus_conformance.steps import (
    MODEL,
    PATIENCE_S,
    STAGE,
    OpenBus,
    Pair,
    bodies,
    claimed,
    eventually,
    numbered,
    write,
)
from omnistage.testing.bus_conformance.stores import StoreConformance
from omnistage.testing.bus_conformance.work import WorkConformance
from omnistage.transport import MAX_BODY_BYTES, Message, Topology


class BusConformance(WorkConformance, LogConformance, StoreConformance):
    """All of it; derive from this one."""

    async def test_control_reaches_all_who_listen(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        heard: list[tuple[str, Message]] = []
        done = asyncio.Event()

        def listener(name: str) -> Callable[[Message], Awaitable[None]]:
            async def listen(message: Message) -> None:
                heard.append((name, message))
                if message.body == b"last":
                    done.set()

            return listen

        await a.subscribe(a.subjects.ctl_requests(), listener("a any"))
        await b.subscribe(a.subjects.ctl_request("r1"), listener("b r1"))
        left = await b.subscribe(a.subjects.ctl_requests(), listener("b left"))
        await b.subscribe(a.subjects.everything("ctl"), listener("b all"))
        await left.close()
        await left.close()
        await a.send(a.subjects.ctl_request("r1"), b"1", {"why": "gone"})
        await b.send(a.subjects.ctl_request("r2"), b"2")
        await b.send(a.subjects.presence("codec", "i1"), b"last")
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()

        async def all_heard() -> bool:
            return len(heard) == 6

        await eventually(all_heard)
        expected = Message(a.subjects.ctl_request("r1"), b"1", {"why": "gone"})
        assert [message for name, message in heard if name == "b r1"] == [expected]
        assert sorted(message.body for name, message in heard if name == "a any") == [b"1", b"2"]
        assert sorted(message.body for name, message in heard if name == "b all") == [b"1", b"2", b"last"]

    async def test_handlers_run_one_after_the_other_and_survive_errors(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        trace: list[str] = []
        done = asyncio.Event()

        async def handle(message: Message) -> None:
            text = message.body.decode()
            trace.append(f"begin {text}")
            await asyncio.sleep(0.01)
            if text == "1":
                raise ValueError("a handler's own error")
            trace.append(f"end {text}")
            if text == "2":
                done.set()

        await b.subscribe(b.subjects.ctl_everyone(), handle)
        for body in numbered(3):
            await a.send(a.subjects.ctl_everyone(), body)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        assert trace == ["begin 0", "end 0", "begin 1", "begin 2", "end 2"]
        assert b.stats.errors == 1

    async def test_bodies_over_the_limit_are_refused(self, bus_pair: Pair) -> None:
        bus = bus_pair[0]
        feed = bus.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        store = await bus.key_value("jobs")
        large = b"x" * (MAX_BODY_BYTES + 1)
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: bus.publish_work(bus.subjects.work(STAGE, MODEL, "r1"), large, {}),
            lambda: bus.append(feed, large, {}, expected=0),
            lambda: bus.send(bus.subjects.ctl_everyone(), large),
            lambda: bus.bury(STAGE, MODEL, "r1", large, "why"),
            lambda: store.put("x", large),
        ]
        for attempt in attempts:
            with pytest.raises(MessageTooLarge):
                await attempt()
        await bus.append(feed, large[:-1], {}, expected=0)
        assert len((await bus.read(feed))[0].body) == MAX_BODY_BYTES

    async def test_dead_letters_are_kept_with_the_reason(self, bus_pair: Pair) -> None:
        bus = bus_pair[0]
        await bus.bury(STAGE, MODEL, "r1", b"body", "third crash:\nalone")
        (letter,) = await self.dead_letters(bus)
        assert letter.subject == bus.subjects.dead(STAGE, MODEL, "r1")
        assert letter.body == b"body"
        assert letter.headers == {"omni-reason": "third crash: alone", "omni-request-id": "r1"}

    async def test_a_survey_finds_the_last_message_of_everything(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        assert await b.survey() == []
        work, held = (a.subjects.work(STAGE, MODEL, name) for name in ("r1", "r2"))
        feed, out = a.subjects.feed(STAGE, MODEL, "r1", "e"), a.subjects.out(STAGE, MODEL, "r3", "e")
        await a.publish_work(held, b"held", {"omni-x": "1"})
        await claimed(await a.work_queue(STAGE, MODEL))
        await a.publish_work(work, b"queued", {})
        await write(a, feed, numbered(3))
        await write(a, out, [b"only"])
        found = {message.subject: message for message in await b.survey()}
        assert {subject: message.body for subject, message in found.items()} == {
            work: b"queued",
            held: b"held",
            feed: numbered(3)[-1],
            out: b"only",
        }
        assert found[held].headers == {"omni-x": "1"}
        assert {message.previous for message in found.values()} == {0}
        await a.purge_request("r1")
        assert {message.subject for message in await b.survey()} == {held, out}

    async def test_namespaces_do_not_meet(self, open_bus: OpenBus, namespace: str) -> None:
        mine, other = await open_bus(namespace), await open_bus(namespace + "x")
        heard: list[Message] = []

        async def listen(message: Message) -> None:
            heard.append(message)

        await other.subscribe(other.subjects.everything("ctl"), listen)
        await mine.send(mine.subjects.ctl_everyone(), b"")
        await mine.publish_work(mine.subjects.work(STAGE, MODEL, "r1"), b"mine", {})
        await write(mine, mine.subjects.feed(STAGE, MODEL, "r1", "e"), [b"mine"])
        await (await mine.key_value("jobs")).put("x", b"mine")
        await other.publish_work(other.subjects.work(STAGE, MODEL, "r1"), b"other", {})
        assert (await claimed(await other.work_queue(STAGE, MODEL))).message.body == b"other"
        await other.purge_request("r1")
        assert await other.read(other.subjects.feed(STAGE, MODEL, "r1", "e")) == []
        assert await (await other.key_value("jobs")).keys() == []
        assert bodies(await mine.read(mine.subjects.feed(STAGE, MODEL, "r1", "e"))) == [b"mine"]
        assert (await claimed(await mine.work_queue(STAGE, MODEL))).message.body == b"mine"
        assert heard == []

    async def test_ensure_is_idempotent(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        topology = Topology.of(a.subjects.namespace, [(STAGE, MODEL), ("codec", "c"), (STAGE, MODEL)])
        await a.ensure(topology)
        await asyncio.gather(b.ensure(topology), a.ensure(topology))
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        await b.ensure(topology)
        assert (await claimed(await b.work_queue(STAGE, MODEL))).message.body == b"x"
        with pytest.raises(ConfigError):
            await a.ensure(Topology.of("elsewhere", []))

    async def test_close_is_idempotent_and_final(self, bus_pair: Pair) -> None:
        bus, other = bus_pair
        feed = bus.subjects.feed(STAGE, MODEL, "r1", "e")
        log = await bus.follow(feed)
        queue = await bus.work_queue(STAGE, MODEL)
        connected = [bus.connected]
        await bus.close()
        await bus.close()
        assert [*connected, bus.connected] == [True, False]
        assert [record async for record in log] == []
        attempts: list[Callable[[], Awaitable[object]]] = [
            queue.claim,
            lambda: bus.append(feed, b"", {}, expected=0),
            lambda: bus.read(feed),
            lambda: bus.follow(feed),
            lambda: bus.publish_work(bus.subjects.work(STAGE, MODEL, "r1"), b"", {}),
            lambda: bus.send(bus.subjects.ctl_everyone(), b""),
            lambda: bus.purge_request("r1"),
            lambda: bus.key_value("jobs"),
        ]
        for attempt in attempts:
            with pytest.raises(BusUnavailable):
                await attempt()
        await write(other, feed, [b"still works"])
