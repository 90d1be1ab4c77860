"""The broker and the tensor server die or are away while streams run: clients hear a gap, and every byte."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.chaos.conftest import paced_system
from tests.support.leftovers import at_rest
from tests.support.listening import all_ready, differences, heard_of, listen, total
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

AWAY_S = 10.0
STAGES = ("thinker", "talker", "codec")


async def pid_of(system: System, service: str) -> int:
    return int((await asyncio.to_thread(system.processes, service))[0]["pid"])


async def kill(system: System) -> None:
    """Kill the broker; the launcher starts it again at once."""
    os.kill(await pid_of(system, "nats"), signal.SIGKILL)


async def stay_away(system: System) -> None:
    """Kill the broker again and again, as soon as it is back."""
    launcher = psutil.Process(system.process.pid)
    end = time.monotonic() + AWAY_S
    while time.monotonic() < end:
        for child in launcher.children():
            with suppress(psutil.NoSuchProcess):
                if "nats-server" in child.name():
                    child.kill()
        await asyncio.sleep(0.01)


async def stand_still(system: System) -> None:
    """Stop the broker for a while: connections stand, and nobody answers."""
    pid = await pid_of(system, "nats")
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(AWAY_S)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("fault", [kill, stay_away, stand_still])
async def test_streams_outlive_an_absence_of_the_broker(
    paced: System, fault: Callable[[System], Awaitable[None]]
) -> None:
    async with httpx.AsyncClient(base_url=paced.url, timeout=180) as client:
        undisturbed = await listen(client)
        taken_over = await total(paced, "omnistage_resumptions_total", *STAGES)
        began = 0.0

        async def disturb() -> None:
            nonlocal began
            began = time.monotonic()
            await fault(paced)

        disturbed = await listen(client, disturb=disturb)
        print(f"\nbroker, {fault.__name__}: {heard_of(disturbed, began)}")
        assert differences(disturbed, undisturbed) == []
        assert differences(await listen(client), undisturbed) == []
    assert await total(paced, "omnistage_resumptions_total", *STAGES) == taken_over, "live holders were robbed"
    await all_ready(paced)
    assert {name: value for name, value in (await at_rest(paced, 15.0)).held.items() if value} == {}


@pytest.fixture(scope="module")
def without_arena(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("without-arena")
    with paced_system(folder, root, environment={"OMNISTAGE_ARENA_MB": "0"}) as running:
        yield running


async def test_streams_outlive_the_tensor_server_that_holds_their_tensors(without_arena: System) -> None:
    async with httpx.AsyncClient(base_url=without_arena.url, timeout=180) as client:
        undisturbed = await listen(client)
        assert await total(without_arena, "omnistage_tensor_bytes_total", "talker") > 0
        began = 0.0

        async def disturb() -> None:
            nonlocal began
            pid = await pid_of(without_arena, "tensors")
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)

        disturbed = await listen(client, disturb=disturb)
        print(f"\ntensor server: {heard_of(disturbed, began)}")
        assert differences(disturbed, undisturbed) == []
    await all_ready(without_arena)
    assert {name: value for name, value in (await at_rest(without_arena, 15.0)).held.items() if value} == {}
