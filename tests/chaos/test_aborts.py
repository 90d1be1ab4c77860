"""Clients that leave at any point, thousands of them: nothing of their requests stays anywhere."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest
from tests.support.leftovers import at_rest
from tests.support.sentences import PARAGRAPH
from tests.support.streams import Ask, Played, play
from tests.support.system import System

pytestmark = [pytest.mark.e2e]

AT_ONCE = 8
SETTLE_S = 15.0
MOMENTS_S = (0.0, 0.01, 0.05, 0.2, 0.6, 1.5)
"""About when clients leave: before the request is read, in the line, in prefill, while it is spoken."""


async def leave(client: httpx.AsyncClient, number: int) -> None:
    """Ask for something and go away after a random time."""
    chance = random.Random(number)
    ask = Ask("chat", "Tell me a long story.", number) if number % 2 else Ask("speech", PARAGRAPH, number)
    try:
        async with asyncio.timeout(chance.choice(MOMENTS_S) * (0.5 + chance.random())):
            await play(client, ask, Played(ask))
    except TimeoutError:
        return


async def _leave_often(system: System, first: int, count: int) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        async with turn:
            await leave(client, number)

    async with httpx.AsyncClient(base_url=system.url, timeout=60) as client, asyncio.TaskGroup() as group:
        for number in range(first, first + count):
            group.create_task(one(client, number))


async def _nothing_stays(system: System, warm: int, count: int) -> None:
    await _leave_often(system, 0, warm)
    before = await at_rest(system, SETTLE_S)
    await _leave_often(system, warm, count)
    after = await at_rest(system, SETTLE_S)
    grown = after.resident_bytes / before.resident_bytes - 1
    print(f"{count} aborts: memory {100 * grown:+.2f} %, descriptors {before.descriptors} -> {after.descriptors}")
    assert {name: value for name, value in after.held.items() if value} == {}
    assert after.consumers == before.consumers
    assert after.tasks <= before.tasks + 2
    assert after.descriptors <= before.descriptors + 2 * AT_ONCE
    assert grown < 0.02


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_nothing_stays_of_hundreds_of_aborts(paced: System) -> None:
    await _nothing_stays(paced, warm=150, count=300)


@pytest.mark.chaos_long
@pytest.mark.timeout(7200)
async def test_nothing_stays_of_ten_thousand_aborts(paced: System) -> None:
    await _nothing_stays(paced, warm=1000, count=10_000)
