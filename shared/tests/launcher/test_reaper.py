"""What dead processes left on a real broker: claims go back, a dead gateway's requests end, everything else stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from omnistage.contracts import Cancel, decode_control
from omnistage.launcher.reaper import Reaper
from omnistage.runtime.claims import CLAIM_TTL_S, CLAIMS_BUCKET, ClaimBook
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.runtime.meta import Meta
from omnistage.runtime.orphans import CANCELLED
from omnistage.testing.servers import NatsServer
from omnistage.transport import Bus, KeyValue, Message
from omnistage.transport.connect import connect

pytestmark = pytest.mark.integration

STAGE, MODEL, EDGE = "talker", "t", "talker-codec"
FAR = 4e9


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    bus = await connect(server.url, "omni", name="test")
    yield bus
    await bus.close()


@pytest.fixture
async def reaper(bus: Bus) -> AsyncIterator[Reaper]:
    reaper = Reaper(bus)
    yield reaper
    await reaper.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


async def request(bus: Bus, request_id: str, gateway: str) -> None:
    """A request that is queued at a stage and has a log already."""
    headers = Meta(deadline=FAR, gateway=gateway).to_headers()
    await bus.publish_work(bus.subjects.work(STAGE, MODEL, request_id), b"work", headers)
    await bus.append(bus.subjects.feed(STAGE, MODEL, request_id, EDGE), b"record", headers, expected=0)


async def left(bus: Bus) -> set[str]:
    """Requests of which anything is on the broker."""
    return {message.subject.split(".")[5] for message in await bus.survey()}


async def tombstones(bus: Bus) -> KeyValue:
    return await bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)


async def claim_as(bus: Bus, instance: str) -> str:
    """Claim the next item as an instance that dies of it; returns its request."""
    queue = await bus.work_queue(STAGE, MODEL)
    claim = await queue.claim()
    request_id = claim.message.subject.split(".")[5]
    book = ClaimBook(await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S), instance)
    await book.enter(request_id, MODEL, claim)
    return request_id


async def claimed_keys(bus: Bus) -> list[str]:
    return await (await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S)).keys()


async def test_a_dead_stages_claims_go_back_and_others_keep_theirs(bus: Bus, reaper: Reaper) -> None:
    for request_id in ("r1", "r2"):
        await request(bus, request_id, "gateway-1-aa")
    dead = await claim_as(bus, "talker-1-aa")
    kept = await claim_as(bus, "talker-1-ab")
    assert {dead, kept} == {"r1", "r2"}

    reaper.died(STAGE, "talker-1-aa")
    queue = await bus.work_queue(STAGE, MODEL)
    async with asyncio.timeout(10):
        again = await queue.claim()
    assert again.message.subject.endswith(dead)
    assert await claimed_keys(bus) == [f"talker-1-ab.{kept}.{MODEL}"]
    assert await left(bus) == {"r1", "r2"}


async def test_a_dead_gateways_requests_end_and_jobs_and_others_go_on(bus: Bus, reaper: Reaper) -> None:
    for request_id, gateway in (("mine", "gateway-1-aa"), ("other", "gateway-2-aa"), ("job", "")):
        await request(bus, request_id, gateway)
    told: list[Message] = []

    async def hear(message: Message) -> None:
        told.append(message)

    await bus.subscribe(bus.subjects.ctl_requests(), hear)
    reaper.died("gateway", "gateway-1-aa", ("announced",))

    async def all_told() -> bool:
        return len(told) >= 2 and await left(bus) == {"other", "job"}

    await until(all_told)
    words = [decode_control(message.body) for message in told]
    assert set(words) == {Cancel(request_id="announced"), Cancel(request_id="mine")}
    assert {message.subject for message in told} == {bus.subjects.ctl_request(name) for name in ("announced", "mine")}
    stones = await tombstones(bus)
    assert await stones.keys() == ["announced", "mine"]
    entry = await stones.get("mine")
    assert entry is not None
    assert entry[0] == CANCELLED


async def test_what_a_dead_gateway_sent_last_ends_too(bus: Bus, reaper: Reaper) -> None:
    await request(bus, "first", "gateway-1-aa")
    reaper.died("gateway", "gateway-1-aa")

    async def first_gone() -> bool:
        return await left(bus) == set()

    await until(first_gone)
    await request(bus, "second", "gateway-1-aa")
    await until(first_gone)
    assert await (await tombstones(bus)).keys() == ["first", "second"]


async def test_a_request_that_was_over_stays_what_it_was(bus: Bus, reaper: Reaper) -> None:
    stones = await tombstones(bus)
    await stones.put("r1", b"done")
    await request(bus, "r1", "gateway-1-aa")
    reaper.died("gateway", "gateway-1-aa", ("r1",))

    async def gone() -> bool:
        return await left(bus) == set()

    await until(gone)
    entry = await stones.get("r1")
    assert entry is not None
    assert entry[0] == b"done"


async def test_a_broker_that_is_away_only_delays(bus: Bus, reaper: Reaper, server: NatsServer) -> None:
    await request(bus, "r1", "gateway-1-aa")
    server.kill()
    reaper.died("gateway", "gateway-1-aa")
    await asyncio.sleep(0.3)
    server.start()

    async def gone() -> bool:
        return await left(bus) == set()

    await until(gone)


async def test_a_start_settles_all_that_the_system_before_left(bus: Bus, reaper: Reaper) -> None:
    for request_id, gateway in (("r1", "gateway-1-aa"), ("r2", "gateway-2-aa"), ("job", ""), ("over", "")):
        await request(bus, request_id, gateway)
    for instance in ("talker-1-aa", "talker-2-aa", "talker-2-aa"):
        await claim_as(bus, instance)
    await (await tombstones(bus)).put("over", b"done")

    assert await reaper.clear() == 3
    assert await claimed_keys(bus) == []
    assert await left(bus) == {"job"}
    queue = await bus.work_queue(STAGE, MODEL)
    async with asyncio.timeout(10):
        assert (await queue.claim()).message.subject.endswith(".job")
    assert await reaper.clear() == 0
    assert await left(bus) == {"job"}


async def test_unreadable_headers_are_nobodys(bus: Bus, reaper: Reaper) -> None:
    headers = {"omni-gateway": "gateway-1-aa", "omni-deadline": "soon"}
    await bus.publish_work(bus.subjects.work(STAGE, MODEL, "odd"), b"", headers)
    assert await reaper.clear() == 0
    assert await left(bus) == {"odd"}


async def test_deaths_after_the_end_are_left_to_the_next_start(bus: Bus) -> None:
    reaper = Reaper(bus)
    await request(bus, "r1", "gateway-1-aa")
    await reaper.close()
    await reaper.close()
    reaper.died("gateway", "gateway-1-aa")
    await asyncio.sleep(0.1)
    assert await left(bus) == {"r1"}
