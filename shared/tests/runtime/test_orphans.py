"""Requests are cancelled when their gateway is gone, and never because this instance hears nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from omnistage.contracts import Cancel, Ping, Presence, decode_control, encode
from omnistage.errors import BusUnavailable
from omnistage.runtime import orphans
from omnistage.runtime.context import REQUESTS_BUCKET
from omnistage.runtime.orphans import LISTED_MAX, OrphanPolicy, OrphanWatch, take_out
from omnistage.runtime.tasks import TaskBag
from omnistage.transport import Message
from omnistage.transport.memory import MemoryBroker, MemoryBus

OWNED = {"r1": "gw-1"}


def presence(instance: str = "gw-1", *running: str, service: str = "gateway", state: Any = "ready") -> Presence:
    return Presence(
        service=service, instance=instance, state=state, version="0", contract=1, pid=1, host="h", started=0.0,
        running=running,
    )  # fmt: skip


class Watched:
    """A policy whose time passes in ticks of a tenth of a second, as an instance looks at it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asks = 0
        self.policy = OrphanPolicy(lambda: self.now)

    def tick(self, *heard: Presence, owners: dict[str, str] | None = None) -> dict[str, orphans.Reason]:
        self.now += 0.1
        for each in heard:
            self.policy.heard(each)
        owned = OWNED if owners is None else owners
        self.asks += self.policy.must_ask(owned.values())
        return self.policy.orphans(owned)

    def until_orphaned(self, *heard: Presence, limit_s: float = 10.0, **options: Any) -> float | None:
        """Seconds until r1 counts as orphaned while these presences come at every tick; None if never."""
        began = self.now
        while self.now < began + limit_s:
            if self.tick(*heard, **options):
                return self.now - began
        return None


OTHER = presence("talker-1", service="talker")


def test_a_request_of_a_living_gateway_stays() -> None:
    assert Watched().until_orphaned(presence("gw-1", "r1")) is None


def test_a_silent_gateways_request_is_orphaned_within_two_seconds() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    took = watched.until_orphaned(OTHER)
    assert took == pytest.approx(1.5, abs=0.11)
    assert watched.asks == 1


def test_a_gateway_that_was_never_heard_gets_the_same_time() -> None:
    assert Watched().until_orphaned(OTHER) == pytest.approx(1.6, abs=0.11)


def test_silence_of_everybody_proves_nothing() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    assert watched.until_orphaned(limit_s=30) is None


def test_after_the_line_was_cut_a_gateway_gets_time_to_come_back() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    assert watched.until_orphaned(limit_s=3) is None
    took = watched.until_orphaned(OTHER)
    assert took == pytest.approx(orphans.REJOIN_S + 1.5, abs=0.25)


def test_a_gateway_that_is_not_back_yet_has_told_nothing() -> None:
    watched = Watched()
    watched.tick(presence("gw-1"), OTHER)
    watched.policy.line_restored()
    took = watched.until_orphaned(OTHER)
    assert took == pytest.approx(orphans.REJOIN_S + 1.5, abs=0.25)


def test_a_gateway_that_comes_back_in_time_keeps_its_requests() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    watched.policy.line_restored()
    assert watched.until_orphaned(OTHER, limit_s=4) is None
    assert watched.until_orphaned(OTHER, presence("gw-1", "r1")) is None


def test_a_slow_answer_to_the_question_is_in_time() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    assert watched.until_orphaned(OTHER, limit_s=1.3) is None
    assert watched.until_orphaned(OTHER, presence("gw-1", "r1"), limit_s=3) is None


def test_a_gateway_that_says_it_failed_loses_its_requests_at_once() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"))
    assert watched.tick(presence("gw-1", state="failed")) == {"r1": "gateway_gone"}


def test_a_request_that_another_gateway_lists_is_not_orphaned() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), OTHER)
    assert watched.until_orphaned(presence("gw-2", "r1")) is None


def test_the_list_of_a_gateway_that_is_gone_counts_no_more() -> None:
    watched = Watched()
    watched.tick(presence("gw-1", "r1"), presence("gw-2", "r1"), OTHER)
    assert watched.until_orphaned(OTHER) is not None


def test_a_request_that_its_living_gateway_does_not_know_is_orphaned_after_a_while() -> None:
    """The gateway's word to the stages was lost; a list that was made just before the request came proves nothing."""
    assert Watched().until_orphaned(presence("gw-1", "another")) == pytest.approx(1.6, abs=0.11)


def test_it_is_said_whether_the_gateway_is_gone_or_done_with_a_request() -> None:
    silent, done = Watched(), Watched()
    assert silent.until_orphaned(OTHER) is not None
    assert silent.policy.orphans(OWNED) == {"r1": "gateway_gone"}
    assert done.until_orphaned(presence("gw-1", "another")) is not None
    assert done.policy.orphans(OWNED) == {"r1": "gateway_done"}


def test_a_list_that_was_cut_off_proves_nothing() -> None:
    cut = presence("gw-1", *(f"x{number}" for number in range(LISTED_MAX)))
    assert Watched().until_orphaned(cut, limit_s=5) is None


def test_gateways_that_nobody_needs_are_forgotten() -> None:
    watched = Watched()
    for number in range(50):
        watched.tick(presence(f"gw-{number}"), owners={})
    for _ in range(700):
        watched.now += 1
        watched.tick(OTHER, owners={})
    assert len(watched.policy._gateways) == 0


class Rig:
    """An OrphanWatch on a MemoryBus whose broker can be away."""

    def __init__(self) -> None:
        self.bus = MemoryBus(MemoryBroker(), "test")
        self.owners = dict(OWNED)
        self.controls: list[Any] = []
        self.faults: list[BaseException] = []
        self.tasks = TaskBag("watch", on_error=self.faults.append)

    async def start(self, watches: int = 1) -> None:
        async def heard(message: Message) -> None:
            control = decode_control(message.body)
            self.controls.append(control)
            if isinstance(control, Cancel):
                self.owners.pop(control.request_id, None)
            if isinstance(control, Ping):
                await self.announce(OTHER)

        await self.bus.subscribe(self.bus.subjects.ctl_requests(), heard)
        await self.bus.subscribe(self.bus.subjects.ctl_everyone(), heard)
        bucket = await self.bus.key_value(REQUESTS_BUCKET)
        for _ in range(watches):
            self.tasks.spawn(OrphanWatch(self.bus, bucket, lambda: self.owners).run())
        await asyncio.sleep(0.05)

    async def announce(self, said: Presence) -> None:
        await self.bus.send(self.bus.subjects.presence(said.service, said.instance), encode(said))

    async def close(self) -> None:
        await self.tasks.close()
        await self.bus.close()
        assert self.faults == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_two_instances_clear_up_the_same_request() -> None:
    rig = Rig()
    await rig.start(watches=2)
    work = rig.bus.subjects.work("talker", "heart", "r1")
    await rig.bus.publish_work(work, b"x", {})
    await rig.announce(presence("gw-1", "r1"))
    await rig.announce(presence("gw-1", state="failed"))
    await until(lambda: not rig.owners)
    bucket = await rig.bus.key_value(REQUESTS_BUCKET)
    assert await bucket.get("r1") is not None
    assert await (await rig.bus.work_queue("talker", "heart")).pending() == 0
    # What a stage published just after the first purge goes as well.
    await rig.bus.publish_work(work, b"x", {})
    queue = await rig.bus.work_queue("talker", "heart")
    async with asyncio.timeout(10):
        while await queue.pending():
            await asyncio.sleep(0.05)
    await rig.close()


async def test_a_silent_gateway_is_asked_before_its_requests_go() -> None:
    rig = Rig()
    await rig.start()
    await rig.announce(presence("gw-1", "r1"))
    await until(lambda: not rig.owners)
    assert [type(control) for control in rig.controls] == [Ping, Cancel]
    await rig.close()


async def test_a_broker_that_is_away_meanwhile_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    await rig.start()
    purge, failures = rig.bus.purge_request, [BusUnavailable("away"), BusUnavailable("away")]

    async def unreliable(request_id: str) -> None:
        if failures:
            raise failures.pop()
        await purge(request_id)

    monkeypatch.setattr(rig.bus, "purge_request", unreliable)
    rig.owners["r2"] = "gw-1"
    await rig.announce(presence("gw-1", state="failed"))
    await until(lambda: not rig.owners and not failures)
    await rig.close()


async def test_a_request_that_is_done_keeps_its_tombstone() -> None:
    bus = MemoryBus(MemoryBroker(), "test")
    bucket = await bus.key_value(REQUESTS_BUCKET)
    await bucket.put("r1", b"done")
    await take_out(bus, bucket, "r1")
    entry = await bucket.get("r1")
    assert entry is not None
    assert entry[0] == b"done"
    await bus.close()


async def test_unreadable_presences_change_nothing() -> None:
    rig = Rig()
    await rig.start()
    await rig.bus.send(rig.bus.subjects.presence("gateway", "gw-1"), b"\xc1")
    await rig.announce(presence("gw-1", "r1"))
    await asyncio.sleep(0.5)
    assert rig.owners == OWNED
    await rig.close()
