"""What every log must do."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.errors import ConfigError, Fenced, QueueFull
from omnistage.testing.bus_conformance.steps import (
    MODEL,
    PATIENCE_S,
    STAGE,
    Conformance,
    OpenBus,
    Pair,
    bodies,
    claimed,
    numbered,
    take,
    write,
)
from omnistage.transport import Message


class LogConformance(Conformance):
    """What every log must do."""

    async def test_append_and_read(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        first = await a.append(subject, b"", {"omni-x": "1"}, expected=0)
        second = await a.append(subject, b"\x00two", {}, expected=first)
        assert 0 < first < second
        assert await b.read(subject) == [
            Message(subject, b"", {"omni-x": "1"}, first, 0),
            Message(subject, b"\x00two", {}, second, first),
        ]
        assert await b.read(subject, first) == [Message(subject, b"\x00two", {}, second, first)]
        assert await b.read(subject, second) == []
        assert await b.read(a.subjects.out(STAGE, MODEL, "r1", "talker-gateway")) == []

    async def test_append_needs_the_last_sequence(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.out(STAGE, MODEL, "r1", "codec-gateway")
        with pytest.raises(Fenced):
            await a.append(subject, b"x", {}, expected=7)
        (last,) = await write(a, subject, [b"x"])
        for wrong in (0, last - 1, last + 1):
            with pytest.raises(Fenced):
                await b.append(subject, b"y", {}, expected=wrong)
        assert bodies(await a.read(subject)) == [b"x"]
        assert (a.stats.fenced, b.stats.fenced) == (1, 3)

    async def test_a_new_holder_fences_the_old_one(self, bus_pair: Pair) -> None:
        old, new = bus_pair
        subject = old.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        sequences = await write(old, subject, numbered(3))
        history = await new.read(subject)
        opened = await new.append(subject, b"opened", {}, expected=history[-1].sequence)
        with pytest.raises(Fenced):
            await old.append(subject, b"zombie", {}, expected=sequences[-1])
        await write(new, subject, [b"3"], opened)
        assert bodies(await old.read(subject)) == [b"0", b"1", b"2", b"opened", b"3"]

    async def test_two_writers_at_once_one_wins(self, bus_pair: Pair) -> None:
        subject = bus_pair[0].subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        outcomes = await asyncio.gather(
            *(bus_pair[n % 2].append(subject, b"%d" % n, {}, expected=0) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 9
        assert len(await bus_pair[0].read(subject)) == 1

    async def test_a_purge_fences_the_writer(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        last = (await write(a, subject, numbered(2)))[-1]
        await b.purge_request("r1")
        with pytest.raises(Fenced):
            await a.append(subject, b"x", {}, expected=last)
        assert await a.read(subject) == []

    async def test_a_purge_removes_all_of_one_request(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        for request_id in ("r1", "r2"):
            await a.publish_work(a.subjects.work(STAGE, MODEL, request_id), request_id.encode(), {})
            await a.publish_work(a.subjects.work("codec", "c", request_id), b"", {})
            await write(a, a.subjects.feed(STAGE, MODEL, request_id, "talker-codec"), numbered(3))
            await write(a, a.subjects.feed("codec", "c", request_id, "codec-x"), numbered(3))
            await write(a, a.subjects.out("codec", "c", request_id, "codec-gateway"), numbered(3))
        held = await claimed(await a.work_queue("codec", "c"))
        assert held.message.subject.endswith("r1")
        await b.purge_request("r1")
        await b.purge_request("unknown")
        for kind, edge in (("feed", "talker-codec"), ("out", "codec-gateway")):
            make = getattr(a.subjects, kind)
            stage = (STAGE, MODEL) if kind == "feed" else ("codec", "c")
            assert await a.read(make(*stage, "r1", edge)) == []
            assert bodies(await a.read(make(*stage, "r2", edge))) == numbered(3)
        assert (await claimed(await b.work_queue(STAGE, MODEL))).message.body == b"r2"
        assert (await claimed(await b.work_queue("codec", "c"))).message.subject.endswith("r2")

    async def test_follow_gives_history_then_live(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        sequences = await write(a, subject, numbered(3))
        log = await b.follow(subject)
        assert await take(log, 3) == await a.read(subject)
        await write(a, subject, numbered(2, 3), sequences[-1])
        assert bodies(await take(log, 2)) == numbered(2, 3)

    async def test_follow_from_the_middle(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.out(STAGE, MODEL, "r1", "talker-gateway")
        other = a.subjects.out(STAGE, MODEL, "r2", "talker-gateway")
        sequences = await write(a, subject, numbered(4))
        await write(a, other, [b"other"])
        log = await b.follow(subject, sequences[1])
        await write(a, subject, numbered(2, 4), sequences[-1])
        records = await take(log, 4)
        assert bodies(records) == numbered(4, 2)
        assert [record.previous for record in records] == [sequences[1], *(r.sequence for r in records[:-1])]

    async def test_follow_a_fresh_log(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.out(STAGE, MODEL, "r1", "codec-gateway")
        log = await b.follow(subject, fresh=True)
        await b.publish_work(b.subjects.work(STAGE, MODEL, "r1"), b"w", {})
        await claimed(await a.work_queue(STAGE, MODEL))
        sequences = await write(a, subject, numbered(3))
        assert [record.sequence for record in await take(log, 3)] == sequences

    async def test_a_fresh_log_that_was_none_is_read_once_it_grows(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.out(STAGE, MODEL, "r1", "codec-gateway")
        sequences = await write(a, subject, numbered(2))
        log = await b.follow(subject, fresh=True)
        await write(a, subject, numbered(1, 2), sequences[-1])
        assert bodies(await take(log, 3)) == numbered(3)

    async def test_follow_an_empty_log(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        logs = [await b.follow(subject) for _ in range(3)]
        sequences = await write(a, subject, numbered(2))
        for log in logs:
            records = await take(log, 2)
            assert [record.sequence for record in records] == sequences
            assert [record.subject for record in records] == [subject, subject]

    async def test_many_records_while_others_write(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        noise = a.subjects.feed(STAGE, MODEL, "r2", "talker-codec")
        start = (await write(a, subject, numbered(700)))[-1]
        async with asyncio.TaskGroup() as group:
            group.create_task(write(a, subject, numbered(800, 700), start))
            group.create_task(write(b, noise, numbered(300)))
            log = await b.follow(subject)
            assert bodies(await take(log, 1500)) == numbered(1500)
        assert bodies(await b.read(subject)) == numbered(1500)
        assert bodies(await a.read(noise)) == numbered(300)

    async def test_a_lost_live_record_is_filled_in(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        log = await b.follow(subject)
        sequences = await write(a, subject, numbered(2))
        assert bodies(await take(log, 2)) == numbered(2)
        self.lose_next_live(log)
        await write(a, subject, numbered(3, 2), sequences[-1])
        assert bodies(await take(log, 3)) == numbered(3, 2)

    async def test_a_lost_last_record_is_found(self, open_bus: OpenBus, namespace: str) -> None:
        bus = await open_bus(namespace, idle_check_s=0.2)
        subject = bus.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        log = await bus.follow(subject)
        self.lose_next_live(log)
        await write(bus, subject, [b"end"])
        assert bodies(await take(log, 1)) == [b"end"]

    async def test_a_follower_of_a_purged_log_sees_what_comes_after(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        log = await b.follow(subject)
        await write(a, subject, numbered(2))
        assert bodies(await take(log, 2)) == numbered(2)
        await a.purge_request("r1")
        await write(a, subject, [b"anew"])
        assert bodies(await take(log, 1)) == [b"anew"]

    async def test_closing_a_log_ends_its_iteration(self, bus_pair: Pair) -> None:
        log = await bus_pair[0].follow(bus_pair[0].subjects.feed(STAGE, MODEL, "r1", "talker-codec"))

        async def consume() -> list[Message]:
            return [record async for record in log]

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            task = group.create_task(consume())
            await asyncio.sleep(0.02)
            await log.close()
        assert task.result() == []
        await log.close()

    async def test_a_full_log_stream_refuses_and_keeps_what_it_has(self, open_bus: OpenBus, namespace: str) -> None:
        bus = await open_bus(namespace, log_max_bytes=64 * 1024)
        subject = bus.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        with pytest.raises(QueueFull):
            await write(bus, subject, [b"x" * 4096] * 100)
        records = await bus.read(subject)
        assert 8 <= len(records) <= 16
        with pytest.raises(QueueFull):
            await bus.append(subject, b"x" * 4096, {}, expected=records[-1].sequence)

    async def test_subjects_of_another_kind_are_refused(self, bus_pair: Pair) -> None:
        bus = bus_pair[0]
        work, feed = bus.subjects.work(STAGE, MODEL, "r1"), bus.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
        with pytest.raises(ConfigError):
            await bus.append(work, b"", {}, expected=0)
        with pytest.raises(ConfigError):
            await bus.publish_work(feed, b"", {})
        with pytest.raises(ConfigError):
            await bus.follow("nonsense")
        with pytest.raises(ConfigError):
            await bus.read(feed.replace(bus.subjects.namespace, "elsewhere"))
