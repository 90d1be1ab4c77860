"""Far more requests than the system can serve: those that are let in do not feel it, the others are told when to come.

Two gateways behind one port; two clients' keys, one twice as busy as the other. Each client that is refused comes back
once, when it was told to, to whichever gateway takes its connection.
"""

from __future__ import annotations

import asyncio
import csv
import datetime
import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.support.system import System, running_system

pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.chaos]

SLOTS = 8
"""Shared by two gateways."""
OVERLAY = f"""
version: 1
engines:
  heart: {{slots: {SLOTS}}}
  heart-wave: {{slots: {SLOTS}, settings: {{pace: 1.2}}}}
"""
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
SHARES = {"alice": 2 / 3, "bob": 1 / 3}
ALLOWANCE_S = 0.1
"""On top of 1.5 times the unloaded time to first audio: clients and all services of the test share two cores."""
PATIENCE_S = 120.0
"""Who is told to come back later than this does not; at ten times the capacity the last would wait ten minutes."""
PROMPT_S = 1.0
"""A refusal is "at once" if it takes no longer, client and all on two cores; measured: some milliseconds."""


@dataclass
class Visit:
    """One request of a client and what became of it.

    Attributes:
        statuses: of the first try and, if that was refused and the client waited, of the second.
        refused_s: how long the refusals took.
        first_audio_s: from the sending of the try that was let in to its first byte of sound.
        admitted_at: clock reading of that sending.
    """

    tenant: str
    statuses: list[int] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    first_audio_s: float | None = None
    admitted_at: float = 0.0
    complete: bool = False


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("overload")
    overlay = folder / "overlay.yaml"
    overlay.write_text(OVERLAY)
    environment = {
        "OMNISTAGE_API_KEYS": ",".join(f"{name}={key}" for name, key in KEYS.items()),
        "OMNISTAGE_MAX_WAIT_S": "0.1",
    }
    models = f"{root / 'deploy' / 'models.yaml'},{overlay}"
    with running_system(folder, models=models, environment=environment, scale="gateway=2") as running:
        yield running


async def attempt(client: httpx.AsyncClient, visit: Visit, text: str) -> float | None:
    """One try; seconds to stay away if it was refused."""
    began = time.monotonic()
    body = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm"}
    headers = {"authorization": f"Bearer {KEYS[visit.tenant]}"}
    async with client.stream("POST", "/v1/audio/speech", json=body, headers=headers) as answer:
        visit.statuses.append(answer.status_code)
        if answer.status_code != 200:
            await answer.aread()
            visit.refused_s.append(time.monotonic() - began)
            return float(answer.headers["retry-after"])
        visit.admitted_at = began
        async for _ in answer.aiter_bytes():
            visit.first_audio_s = visit.first_audio_s or time.monotonic() - began
    visit.complete = True
    return None


async def visits(client: httpx.AsyncClient, tenant: str, number: int) -> Visit:
    """Ask, and if refused wait as told and ask once more."""
    visit = Visit(tenant)
    text = f"Good morning number {number}."
    stay_away_s = await attempt(client, visit, text)
    if stay_away_s is not None and stay_away_s <= PATIENCE_S:
        await asyncio.sleep(stay_away_s)
        await attempt(client, visit, text)
    return visit


async def unloaded(client: httpx.AsyncClient) -> tuple[float, float]:
    """Median time to first audio and median time of one request when there is no other."""
    first, whole = [], []
    for number in range(8):
        began = time.monotonic()
        visit = Visit("alice")
        assert await attempt(client, visit, f"Good morning number {number + 100}.") is None
        assert visit.first_audio_s is not None
        first.append(visit.first_audio_s)
        whole.append(time.monotonic() - began)
    return statistics.median(first), statistics.median(whole)


async def crowd(client: httpx.AsyncClient, rate: float, seconds: float) -> list[Visit]:
    """Random arrivals of both keys at this rate for so long, each to its end."""
    noise = random.Random(3)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Visit]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(noise.expovariate(rate))
            tenant = "alice" if noise.random() < SHARES["alice"] else "bob"
            tasks.append(group.create_task(visits(client, tenant, len(tasks))))
    return [task.result() for task in tasks]


@dataclass(frozen=True)
class Outcome:
    """What an overload looked like to the clients; times in seconds."""

    times: float
    seconds: float
    capacity_per_s: float
    first_unloaded_s: float
    seen: list[Visit]

    @property
    def returned(self) -> list[Visit]:
        return [visit for visit in self.seen if len(visit.statuses) == 2]

    @property
    def kept(self) -> list[Visit]:
        return [visit for visit in self.returned if visit.statuses[1] == 200]

    @property
    def first_audio_s(self) -> list[float]:
        return sorted(visit.first_audio_s for visit in self.seen if visit.first_audio_s is not None)

    @property
    def refused_s(self) -> list[float]:
        return sorted(seconds for visit in self.seen for seconds in visit.refused_s)

    @property
    def shares(self) -> tuple[int, int]:
        """Requests of the two keys that were let in while both had some waiting."""
        admitted = {name: [v.admitted_at for v in self.seen if v.tenant == name and 200 in v.statuses] for name in KEYS}
        until = min(max(times) for times in admitted.values())
        alice, bob = (sum(1 for at in admitted[name] if at <= until) for name in ("alice", "bob"))
        return alice, bob

    def row(self) -> dict[str, object]:
        """For people and for a file."""
        audio, refused, (alice, bob) = self.first_audio_s, self.refused_s, self.shares
        return {
            "times_capacity": self.times,
            "seconds": self.seconds,
            "gateways": 2,
            "slots": SLOTS,
            "capacity_per_s": round(self.capacity_per_s, 2),
            "clients": len(self.seen),
            "refused": sum(visit.statuses[0] != 200 for visit in self.seen),
            "patience_s": PATIENCE_S,
            "refused_and_waited": len(self.returned),
            "let_in_at_next_try": round(len(self.kept) / len(self.returned), 4),
            "first_audio_unloaded_p50_s": round(self.first_unloaded_s, 4),
            "first_audio_p50_s": round(statistics.median(audio), 4),
            "first_audio_p90_s": round(audio[int(0.9 * len(audio))], 4),
            "first_audio_p99_s": round(audio[int(0.99 * len(audio))], 4),
            "refusal_p50_s": round(statistics.median(refused), 4),
            "refusal_p99_s": round(refused[int(0.99 * len(refused))], 4),
            "let_in_alice": alice,
            "let_in_bob": bob,
        }


def record(outcome: Outcome, root: Path) -> None:
    """Add a line to the project's results."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    row = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or "unknown",
        "cpu": f"{os.cpu_count()} cores",
        **outcome.row(),
    }
    path = root / "benchmarks" / "results" / "overload.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


async def overload(system: System, times: float, seconds: float) -> Outcome:
    """Put the system under so many times its capacity and see what becomes of everybody."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=system.url, timeout=1800, limits=limits) as client:
        first_s, whole_s = await unloaded(client)
        capacity = SLOTS / whole_s
        seen = await crowd(client, times * capacity, seconds)
    outcome = Outcome(times, seconds, capacity, first_s, seen)
    print("\n" + "\n".join(f"{name}: {value}" for name, value in outcome.row().items()))
    return outcome


def check(outcome: Outcome) -> None:
    """What must hold of everybody's answers."""
    seen = outcome.seen
    assert {status for visit in seen for status in visit.statuses} <= {200, 429, 503}
    assert len(outcome.returned) > len(seen) / 10, "this was no overload"
    assert all(visit.complete for visit in seen if 200 in visit.statuses)
    assert len(outcome.kept) >= 0.95 * len(outcome.returned)
    assert statistics.median(outcome.first_audio_s) <= 1.5 * outcome.first_unloaded_s + ALLOWANCE_S
    assert statistics.median(outcome.refused_s) <= PROMPT_S


@pytest.mark.timeout(300)
async def test_five_times_the_capacity_for_a_moment(system: System) -> None:
    outcome = await overload(system, times=5, seconds=4)
    check(outcome)
    alice, bob = outcome.shares
    assert abs(alice - bob) <= 0.1 * max(alice, bob) + 4, "so few requests differ by some at the edges"


@pytest.mark.load_long
@pytest.mark.timeout(900)
async def test_ten_times_the_capacity_for_a_minute(system: System, root: Path) -> None:
    outcome = await overload(system, times=10, seconds=60)
    record(outcome, root)
    check(outcome)
    alice, bob = outcome.shares
    assert abs(alice - bob) <= 0.1 * max(alice, bob)
