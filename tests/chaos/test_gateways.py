"""One of two gateways dies: its requests end everywhere, those of the other one do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from tests.chaos.conftest import paced_system
from tests.support.leftovers import at_rest
from tests.support.listening import SENTENCES, all_ready, differences, listen
from tests.support.presences import Presences, watching
from tests.support.streams import Ask, Played, play

from omnistage.contracts import Presence

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

SPEECH = Ask("speech", ". ".join(SENTENCES[:5]) + ".", seed=3)
STREAMS_MAX = 24
GONE_S = 2.0
ALLOWANCE_S = 1.0
"""Beyond that: the test, its broker and all services share two cores."""


async def both_serve(presences: Presences, streams: list[Played], group: asyncio.TaskGroup, url: str) -> list[Presence]:
    """Ask until both gateways have a stream that is heard; who gets a connection is the kernel's choice."""
    while len(streams) < STREAMS_MAX:
        for _ in range(2):
            streams.append(Played(SPEECH))
            group.create_task(alone(url, streams[-1]))
        async with asyncio.timeout(60):
            while not all(played.arrivals for played in streams):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        gateways = presences.ready_gateways()
        if len(gateways) == 2 and all(gateway.running for gateway in gateways):
            return gateways
    raise AssertionError("one gateway has got all connections")


async def alone(url: str, played: Played) -> None:
    """Over a connection of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=180) as client:
        await play(client, played.ask, played)


async def gone(presences: Presences, requests: frozenset[str]) -> float:
    """Seconds until no stage runs any of these requests."""
    began = time.monotonic()
    async with asyncio.timeout(30):
        while any(presences.holders(request_id) for request_id in requests):
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_another_gateway_goes_on_serving(tmp_path: Path, root: Path) -> None:
    with paced_system(tmp_path, root, scale="gateway=2,talker=2,codec=2") as system:
        async with system.bus() as bus, watching(bus) as presences:
            undisturbed = Played(SPEECH)
            await alone(system.url, undisturbed)
            streams: list[Played] = []
            async with asyncio.TaskGroup() as group:
                dead, _ = await both_serve(presences, streams, group, system.url)
                assert any(presences.holders(request_id) for request_id in dead.running)
                os.kill(dead.pid, signal.SIGKILL)
                presences.forget(dead.instance)
                took = await gone(presences, frozenset(dead.running))
                at_once = Played(SPEECH)
                group.create_task(alone(system.url, at_once))
        print(f"\nrequests of the dead gateway gone from all stages after {took:.2f} s")
        assert took <= GONE_S + ALLOWANCE_S
        lost = {played.request_id for played in streams if not played.complete}
        assert lost
        assert lost <= set(dead.running)
        kept = [played for played in [*streams, at_once] if played.complete]
        assert differences(kept, [undisturbed] * len(kept)) == []
        assert at_once in kept
        await all_ready(system)
        assert {name: value for name, value in (await at_rest(system, 15.0)).held.items() if value} == {}
        async with httpx.AsyncClient(base_url=system.url, timeout=180) as client:
            assert differences(await listen(client, [SPEECH]), [undisturbed]) == []
