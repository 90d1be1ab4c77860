"""A system near its limit for a long time, one instance killed every half minute: nobody notices, nothing grows.

The load is 80 % of the highest arrival rate that met the goals just before. The goals are those of clients: nobody is
refused, sound begins soon, and no stream runs dry.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.chaos.conftest import paced_system
from tests.chaos.report import percentile
from tests.support.leftovers import at_rest
from tests.support.listening import SENTENCES
from tests.support.presences import Presences, watching
from tests.support.streams import BYTES_PER_S, Ask, Played, play
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.chaos]

STAGES = ("thinker", "talker", "codec")
FIRST_SOUND_S = 1.0
"""Goal of 95 % of the streams. At 1.2 times the pace of speech the rest of the time is the streams' own."""
JITTER_S = 0.1
"""Clients begin to play so long after the first sound: what a client's own buffer evens out."""
RECOVERY_S = 5.0
"""A stream may run dry so soon after a kill, and not later."""
GROWTH = 0.05
SETTLE_S = 20.0


@dataclass
class Visit:
    """One client's request and when it was sent, in monotonic seconds."""

    sent: float
    played: Played

    @property
    def first_s(self) -> float | None:
        return self.played.arrivals[0][0] - self.sent if self.played.arrivals else None

    def dry(self) -> list[tuple[float, float]]:
        """Spans of time in which the client had nothing to play."""
        spans: list[tuple[float, float]] = []
        empty_at, before = 0.0, 0
        for at, total in self.played.arrivals:
            if not before:
                empty_at = at + JITTER_S
            elif at > empty_at:
                spans.append((empty_at, at))
            empty_at = max(empty_at, at) + (total - before) / BYTES_PER_S
            before = total
        return spans


@dataclass
class Soak:
    """Clients that come at random moments.

    Attributes:
        kills: when instances were killed, and which.
    """

    client: httpx.AsyncClient
    chance: random.Random
    visits: list[Visit] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)

    async def arrive(self, per_s: float, seconds: float) -> list[Visit]:
        """Let clients come at this rate, and wait until the last has heard its answer."""
        first = len(self.visits)
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < end:
                await asyncio.sleep(self.chance.expovariate(per_s))
                visit = Visit(time.monotonic(), Played(self._ask(len(self.visits))))
                self.visits.append(visit)
                group.create_task(play(self.client, visit.played.ask, visit.played))
        return self.visits[first:]

    def _ask(self, number: int) -> Ask:
        if number % 3 == 2:
            return Ask("chat", f"Tell me something about the number {number}.", seed=number, max_tokens=24)
        start = number % (len(SENTENCES) - 1)
        return Ask("speech", ". ".join(SENTENCES[start : start + 2]) + ".", seed=number)

    async def kill_by_turns(self, presences: Presences, every_s: float) -> None:
        """Kill an instance of each stage in turn, one that has work if there is any; for ever."""
        for stage in itertools.cycle(STAGES):
            await asyncio.sleep(every_s)
            ready = await presences.wait_ready(stage, 2)
            victim = max(ready, key=lambda presence: len(presence.running))
            os.kill(victim.pid, signal.SIGKILL)
            presences.forget(victim.instance)
            self.kills.append((time.monotonic(), stage))

    def unexcused(self) -> list[str]:
        """Streams that ran dry though nothing had been killed just before, in words."""
        return [
            f"{visit.played.request_id} ({visit.played.ask.kind}): dry for {until - since:.2f} s"
            for visit in self.visits
            for since, until in visit.dry()
            if not any(at <= until and since <= at + RECOVERY_S for at, _ in self.kills)
        ]


def missed(visits: Sequence[Visit]) -> str:
    """Which goal so many clients did not get, in words; empty if all was well."""
    failures = [visit.played.failure for visit in visits if not visit.played.complete]
    if failures:
        return f"{len(failures)} failed, e.g. {failures[0]}"
    first = percentile([visit.first_s or 0.0 for visit in visits], 0.95)
    if first > FIRST_SOUND_S:
        return f"first sound after {first:.2f} s (95 %)"
    dry = sum(bool(visit.dry()) for visit in visits)
    return f"{dry} of {len(visits)} ran dry" if dry else ""


async def highest_rate(soak: Soak, *, first_per_s: float, seconds: float, factor: float = 1.25) -> float:
    """The highest rate of arrivals per second that meets the goals, found by ever higher ones."""
    rate, best = first_per_s, 0.0
    while True:
        reason = missed(await soak.arrive(rate, seconds))
        print(f"{rate:.2f} per s: {reason or 'goals met'}")
        if reason:
            return best
        best, rate = rate, rate * factor


@asynccontextmanager
async def soaking(system: System) -> AsyncIterator[tuple[Soak, Presences]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        system.bus() as bus,
        watching(bus) as presences,
        httpx.AsyncClient(base_url=system.url, timeout=180, limits=limits) as client,
    ):
        yield Soak(client, random.Random(5)), presences


async def soak_for(system: System, seconds: float, every_s: float, rate: float | None) -> tuple[Soak, float]:
    """Kill and listen; what clients must not notice is asserted.

    Args:
        rate: arrivals per second; None for 80 % of the highest.
    """
    async with soaking(system) as (soak, presences):
        per_s = rate or 0.8 * await highest_rate(soak, first_per_s=0.8, seconds=20)
        assert per_s > 0, "not even the lowest rate met the goals"
        await soak.arrive(per_s, min(30.0, seconds / 2))
        before = await at_rest(system, SETTLE_S)
        soak.visits.clear()
        async with asyncio.TaskGroup() as group:
            killer = group.create_task(soak.kill_by_turns(presences, every_s))
            visits = await soak.arrive(per_s, seconds)
            killer.cancel()
        for stage in STAGES:
            await presences.wait_ready(stage, 2)
        after = await at_rest(system, SETTLE_S)
    grown = after.resident_bytes / before.resident_bytes - 1
    firsts = [visit.first_s for visit in visits if visit.first_s is not None]
    dry = [until - since for visit in visits for since, until in visit.dry()]
    print(
        f"{len(visits)} requests at {per_s:.2f} per s, {len(soak.kills)} kills: "
        f"first sound p50 {percentile(firsts, 0.5):.2f} s, p99 {percentile(firsts, 0.99):.2f} s; "
        f"{len(dry)} gaps, longest {max(dry, default=0.0):.2f} s; memory {100 * grown:+.1f} %"
    )
    assert [visit.played.failure for visit in visits if not visit.played.complete] == []
    assert soak.unexcused() == []
    assert {name: value for name, value in after.held.items() if value} == {}
    assert grown < GROWTH
    return soak, per_s


@pytest.mark.timeout(400)
async def test_a_minute_under_load_with_kills(tmp_path: Path, root: Path) -> None:
    with paced_system(tmp_path, root) as system:
        soak, _ = await soak_for(system, seconds=45, every_s=12, rate=0.5)
    assert len(soak.kills) >= 3


@pytest.mark.load_long
@pytest.mark.timeout(2400)
async def test_twenty_minutes_near_the_limit_with_kills(tmp_path: Path, root: Path) -> None:
    with paced_system(tmp_path, root) as system:
        soak, per_s = await soak_for(system, seconds=1200, every_s=30, rate=None)
    write(soak, per_s, root / "benchmarks" / "results" / "soak.csv")
    assert len(soak.kills) >= 35


def write(soak: Soak, per_s: float, path: Path) -> None:
    """One line for each minute."""
    began = soak.visits[0].sent
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("minute", "per_s", "requests", "failed", "kills", "first_sound_p50_s", "first_sound_p95_s",
                         "gaps", "longest_gap_s"))  # fmt: skip
        for minute in range(int((soak.visits[-1].sent - began) // 60) + 1):
            since, until = began + 60 * minute, began + 60 * (minute + 1)
            own = [visit for visit in soak.visits if since <= visit.sent < until]
            firsts = [visit.first_s for visit in own if visit.first_s is not None]
            dry = [end - start for visit in own for start, end in visit.dry()]
            writer.writerow(
                (
                    minute,
                    round(per_s, 3),
                    len(own),
                    sum(not visit.played.complete for visit in own),
                    sum(since <= at < until for at, _ in soak.kills),
                    round(percentile(firsts, 0.5), 3),
                    round(percentile(firsts, 0.95), 3),
                    len(dry),
                    round(max(dry, default=0.0), 3),
                )
            )
