"""Stages are killed while they speak: every stream completes, with the bytes of the undisturbed run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.chaos.conftest import paced_system
from tests.chaos.kills import Chaos
from tests.chaos.report import summary, write
from tests.support.presences import watching
from tests.support.sentences import PARAGRAPH, PLAIN
from tests.support.streams import Ask
from tests.support.system import System

pytestmark = [pytest.mark.e2e]

SENTENCES = PARAGRAPH.split(". ")
QUESTIONS = ("Tell me a story about a dog.", "Describe a house by the sea.", "What do bakers do all night?")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    """Each instance can take over all that the other holds: else recovery waits for the dead one's successor."""
    with paced_system(tmp_path_factory.mktemp("roomy"), root, slots=24) as running:
        yield running


def asks(count: int) -> list[Ask]:
    """Speech and conversations by turns, each different."""
    return [
        Ask("chat", f"{QUESTIONS[number % len(QUESTIONS)]} {PLAIN[number % len(PLAIN)]}", seed=number)
        if number % 2
        else Ask("speech", ". ".join(SENTENCES[number % 8 : number % 8 + 4]) + ".", seed=number)
        for number in range(count)
    ]


async def _disturb(system: System, kills_per_stage: int, at_once: int, seed: int) -> Chaos:
    async with (
        system.bus() as bus,
        watching(bus) as presences,
        httpx.AsyncClient(base_url=system.url, timeout=180) as client,
    ):
        chaos = Chaos(bus, client, presences, random.Random(seed))
        await chaos.learn(asks(at_once))
        await chaos.run(kills_per_stage, at_once)
    return chaos


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_streams_survive_the_death_of_any_stage(roomy: System) -> None:
    chaos = await _disturb(roomy, kills_per_stage=4, at_once=6, seed=11)
    wrong = chaos.wrong()
    print(summary(chaos), *wrong, sep="\n")
    assert wrong == []


@pytest.mark.chaos_long
@pytest.mark.timeout(3600)
async def test_streams_survive_a_hundred_deaths(roomy: System, root: Path) -> None:
    chaos = await _disturb(roomy, kills_per_stage=34, at_once=20, seed=12)
    wrong = chaos.wrong()
    print(summary(chaos), *wrong, sep="\n")
    write(chaos, root / "benchmarks" / "results" / "chaos.csv")
    assert wrong == []
