"""A gateway that is killed takes its requests with it: nobody works on for clients that are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.inspection import entries, jetstream
from tests.support.sentences import PARAGRAPH
from tests.support.system import System, running_system

from omnistage.contracts import Ping, Presence, decode_control, encode
from omnistage.transport import Bus, Message

pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.chaos]

OVERLAY = """
version: 1
engines:
  heart: {slots: 8, settings: {pace: 2}}
  heart-wave: {slots: 8, settings: {pace: 1.2}}
"""
STREAMS = 6
INSTANCES = 5
"""A thinker, two talkers, two codecs."""
GONE_S = 2.0
ALLOWANCE_S = 1.0
"""Beyond that: the test, its broker and all services share two cores."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("death")
    overlay = folder / "overlay.yaml"
    overlay.write_text(OVERLAY)
    models = f"{root / 'deploy' / 'models.yaml'},{overlay}"
    with running_system(folder, models=models, scale="talker=2,codec=2") as running:
        yield running


async def stream(client: httpx.AsyncClient, heard: asyncio.Semaphore) -> None:
    """Listen to a long text until the connection ends."""
    body = {"model": "tts-1", "voice": "alloy", "input": PARAGRAPH, "response_format": "pcm"}
    first = True
    async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_bytes():
            if first:
                first = False
                heard.release()


async def running_on(bus: Bus) -> dict[str, tuple[str, ...]]:
    """What each stage instance runs, as all of them say when asked."""
    running: dict[str, tuple[str, ...]] = {}

    async def hear(message: Message) -> None:
        presence = decode_control(message.body)
        if isinstance(presence, Presence) and presence.service != "gateway":
            running[presence.instance] = presence.running

    subscription = await bus.subscribe(bus.subjects.presences(), hear)
    try:
        await bus.send(bus.subjects.ctl_everyone(), encode(Ping()))
        async with asyncio.timeout(10):
            while len(running) < INSTANCES:
                await asyncio.sleep(0.02)
    finally:
        await subscription.close()
    return running


async def start(client: httpx.AsyncClient, bus: Bus) -> list[asyncio.Task[None]]:
    """Streams that are being heard."""
    heard = asyncio.Semaphore(0)
    streams = [asyncio.ensure_future(stream(client, heard)) for _ in range(STREAMS)]
    for _ in range(STREAMS):
        await heard.acquire()
    assert len(set().union(*(await running_on(bus)).values())) == STREAMS
    return streams


async def idle_after(bus: Bus) -> float:
    """Seconds until no stage runs anything."""
    began = time.monotonic()
    async with asyncio.timeout(30):
        while any((await running_on(bus)).values()):
            pass
    return time.monotonic() - began


async def nothing_left(system: System) -> None:
    async with jetstream(system.state) as look, asyncio.timeout(10):
        while any((await entries(look, system.state.namespace)).values()):
            await asyncio.sleep(0.1)


async def test_requests_of_a_gateway_that_hangs_are_cancelled_by_the_stages(system: System) -> None:
    """Nobody saw it die, so this is also what happens when its whole host is lost."""
    (gateway,) = system.processes("gateway")
    async with system.bus() as bus, httpx.AsyncClient(base_url=system.url, timeout=60) as client:
        streams = await start(client, bus)
        os.kill(gateway["pid"], signal.SIGSTOP)
        try:
            took = await idle_after(bus)
        finally:
            os.kill(gateway["pid"], signal.SIGCONT)
        outcomes = await asyncio.gather(*streams, return_exceptions=True)
    print(f"\nall stages idle {took:.2f} s after the gateway was stopped")
    assert all(isinstance(outcome, httpx.TransportError) for outcome in outcomes), "every connection has ended"
    assert took <= GONE_S + ALLOWANCE_S
    await nothing_left(system)


async def test_requests_of_a_killed_gateway_are_cancelled_everywhere(system: System) -> None:
    (gateway,) = system.processes("gateway")
    async with system.bus() as bus, httpx.AsyncClient(base_url=system.url, timeout=60) as client:
        streams = await start(client, bus)
        os.kill(gateway["pid"], signal.SIGKILL)
        took = await idle_after(bus)
        outcomes = await asyncio.gather(*streams, return_exceptions=True)
    print(f"\nall stages idle {took:.2f} s after the kill")
    assert all(isinstance(outcome, httpx.TransportError) for outcome in outcomes), "every connection has ended"
    assert took <= GONE_S + ALLOWANCE_S
    await nothing_left(system)


async def test_the_next_gateway_serves(system: System) -> None:
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as client, asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/ready")).status_code == 200:
                    break
            except httpx.TransportError:
                await asyncio.sleep(0.1)
        body = {"model": "tts-1", "voice": "alloy", "input": "Good morning.", "response_format": "pcm"}
        answer = await client.post("/v1/audio/speech", json=body)
        assert answer.status_code == 200
        assert len(answer.content) > 24_000
