"""What must hold of a system over two hosts, however they are connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from redis.asyncio import Redis
from tests.chaos.conftest import PACED
from tests.support.far import FarHost
from tests.support.inspection import metric
from tests.support.leftovers import at_rest
from tests.support.presences import Presences, watching
from tests.support.progress import LOGS, log_subject, progress, take_over
from tests.support.sentences import PARAGRAPH
from tests.support.streams import Ask, Played, play
from tests.support.system import System, running_system

from omnistage.contracts import Opened, decode_record
from omnistage.transport import Bus

STAGES = tuple(LOGS)
ENGINES = {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"}
SENTENCES = PARAGRAPH.split(". ")
ASKS = [
    Ask("chat", f"Tell me a story about number {number}.", seed=number, max_tokens=60)
    if number % 2
    else Ask("speech", ". ".join(SENTENCES[number : number + 5]) + ".", seed=number)
    for number in range(8)
]
APART_S = 0.3
SETTLE_S = 60.0
TAKE_OVER_S = 15.0
REJOIN_S = 40.0
WOKEN_S = 8.0
"""So long a host that was cut off is watched afterwards."""

Contents = dict[Ask, tuple[str, bytes]]


@contextmanager
def near_host(folder: Path, root: Path, address: str) -> Iterator[System]:
    """The host with the servers and an instance of each stage, its engines paced."""
    overlay = folder / "paced.yaml"
    overlay.write_text(PACED)
    models = f"{root / 'deploy' / 'models.yaml'},{overlay}"
    options = ("--internal-host", address, "--bus-port", "0", "--tensor-port", "0")
    with running_system(folder, models=models, options=options) as running:
        yield running


async def undisturbed(system: System) -> Contents:
    """What every ask gives while no other host takes part."""
    async with httpx.AsyncClient(base_url=system.url, timeout=180) as client:
        return await answers(client, ASKS)


async def answers(client: httpx.AsyncClient, asks: Sequence[Ask]) -> Contents:
    """One begins after the other, so that they meet idle instances on either host; each must complete."""
    streams = [Played(ask) for ask in asks]
    async with asyncio.TaskGroup() as group:
        for played in streams:
            group.create_task(play(client, played.ask, played))
            await asyncio.sleep(APART_S)
    assert [played.failure for played in streams if not played.complete] == []
    return {played.ask: played.content for played in streams}


@dataclass
class Scene:
    """A running system over two hosts, looked at from the near one.

    Attributes:
        cut, heal: what they do to the link.
        expected: what every ask gives undisturbed.
    """

    system: System
    far: FarHost
    bus: Bus
    presences: Presences
    client: httpx.AsyncClient
    cut: Callable[[], None]
    heal: Callable[[], None]
    expected: Contents

    async def joined(self) -> None:
        """Until both hosts' instances of all stages answer."""
        for stage in STAGES:
            await self.presences.wait_ready(stage, 2, timeout_s=REJOIN_S)

    async def serves(self) -> None:
        """Both hosts do their part of all that is asked, and what comes out is what one host makes alone."""
        await self.joined()
        before = self._done()
        different = [
            ask for ask, content in (await answers(self.client, ASKS)).items() if content != self.expected[ask]
        ]
        assert different == [], different
        end = time.monotonic() + SETTLE_S
        idle = set(before)
        while idle and time.monotonic() < end:
            await asyncio.sleep(0.5)
            idle -= {instance for instance, done in self._done().items() if done > before[instance]}
        assert idle == set(), idle

    def _done(self) -> dict[str, float]:
        """Work items that each far instance has brought to an end.

        Over a slow line the word that a request is over overtakes the codec while it still gives blocks back, so that
        what it has made counts as cancelled.
        """
        name, outcomes = "omnistage_work_done_total", ("ok", "cancelled")
        return {
            far.instance: sum(far.metric(name, outcome=outcome) for outcome in outcomes) for far in self.far.instances
        }

    async def _holders(self, subject: str, after: int, streams: Sequence[Played], cut_s: float) -> list[str]:
        """Who opens a log from now on, until all is over and the line was whole again for a while."""
        found: list[str] = []
        until = time.monotonic() + cut_s + WOKEN_S
        log = await self.bus.follow(subject, after)

        async def listen() -> None:
            async for message in log:
                record = decode_record(message.body)
                if isinstance(record, Opened):
                    found.append(record.instance)

        async with asyncio.TaskGroup() as group:
            group.create_task(listen())
            while time.monotonic() < until or not all(played.complete or played.failure for played in streams):
                await asyncio.sleep(0.2)
            await log.close()
        return found

    async def far_holder(self, asked: Sequence[Played], stage: str) -> tuple[str, int]:
        """Wait until the far instance of a stage has sent some of a stream; its log, and the last record there."""
        async with asyncio.timeout(60):
            while True:
                await asyncio.sleep(0.05)
                for played in (played for played in asked if played.request_id):
                    subject = log_subject(self.bus, stage, ENGINES[stage], played.request_id)
                    state = await progress(self.bus, subject)
                    if state.holder == self.far.of(stage).instance and state.chunks and not state.over:
                        return subject, state.last

    async def outlives_a_cut(self, stage: str, cut_s: float, *, taken_over: bool) -> None:
        """Cut the link while the far instance of a stage speaks; everything completes as if nothing had been."""
        await self.joined()
        streams = [Played(ask) for ask in ASKS]
        async with asyncio.TaskGroup() as group:
            for played in streams:
                group.create_task(play(self.client, played.ask, played))
            subject, last = await self.far_holder(streams, stage)
            far = self.far.of(stage).instance
            holders = group.create_task(self._holders(subject, last, streams, cut_s))
            self.cut()
            healed = time.monotonic() + cut_s
            try:
                taken = await take_over(self.bus, subject, last, far, TAKE_OVER_S) if taken_over else None
                await asyncio.sleep(max(0.0, healed - time.monotonic()))
            finally:
                self.heal()
        if taken_over:
            assert taken is not None, "nobody took over"
            assert far not in holders.result(), holders.result()
        assert [played.failure for played in streams if not played.complete] == []
        assert [played.ask for played in streams if played.content != self.expected[played.ask]] == []

    async def nothing_left(self) -> None:
        """On neither host, the broker or the tensor server."""
        near = await at_rest(self.system, SETTLE_S)
        assert {name: value for name, value in near.held.items() if value} == {}
        end = time.monotonic() + SETTLE_S
        while (left := await self._left()) and time.monotonic() < end:
            await asyncio.sleep(0.5)
        assert left == {}, left

    async def _left(self) -> dict[str, float]:
        names = ("omnistage_slots_in_use", "omnistage_arena_used_bytes")
        found = {f"{far.instance} {name}": far.metric(name) for far in self.far.instances for name in names}
        async with Redis.from_url(self.system.state.redis_url) as server:
            found["keys"] = await server.dbsize()
        return {name: value for name, value in found.items() if value}


@asynccontextmanager
async def watched(
    system: System, far: FarHost, cut: Callable[[], None], heal: Callable[[], None], expected: Contents
) -> AsyncIterator[Scene]:
    """Look at a system over two hosts."""
    async with (
        system.bus() as bus,
        watching(bus) as presences,
        httpx.AsyncClient(base_url=system.url, timeout=180) as client,
    ):
        yield Scene(system, far, bus, presences, client, cut, heal, expected)


def bytes_by_redis(system: System, far: FarHost, service: str, edge: str) -> tuple[float, float]:
    """What a stage's instances have written to an edge through the tensor server: here, and there."""
    labels = {"edge": edge, "place": "redis"}
    name = "omnistage_tensor_bytes_total"
    near = sum(metric(entry["metrics_port"], name, **labels) for entry in system.processes(service))
    return near, far.of(service).metric(name, **labels)
