"""Everything is killed at a random moment under load, the launcher too: the next start finds nothing of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.chaos.conftest import paced_system
from tests.e2e.test_restarts import claims_and_tombstones, marked, owners
from tests.support.inspection import consumers, entries, jetstream
from tests.support.leftovers import at_rest
from tests.support.listening import MIXED, differences, listen
from tests.support.streams import Played, play
from tests.support.system import System

from omnistage.launcher.folder import DataFolder
from omnistage.subjects import FEED, OUT, WORK

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

ROUNDS = 3
SEED = 5


async def killed_under_load(system: System, after_s: float) -> None:
    """Kill the launcher and all that it started, in any order, while streams run."""
    processes = [system.process.pid, *(child.pid for child in psutil.Process(system.process.pid).children())]
    random.Random(SEED).shuffle(processes)
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as client, asyncio.TaskGroup() as group:
        for ask in MIXED:
            group.create_task(play(client, ask, Played(ask)))
        await asyncio.sleep(after_s)
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has died with the launcher
                continue
    system.process.wait()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in processes if psutil.pid_exists(pid)], timeout=5)
    assert alive == [], "children die with their launcher"


async def assert_clean(system: System) -> None:
    """Nothing of an earlier run is in any place where requests leave something while they run."""
    processes = (await asyncio.to_thread(system.status))["processes"]
    assert {entry["state"] for entry in processes} == {"ready"}
    claims, _ = await claims_and_tombstones(system)
    assert claims == []
    async with jetstream(system.state) as broker:
        assert await entries(broker, system.state.namespace) == {WORK: 0, FEED: 0, OUT: 0}
        assert await consumers(broker, system.state.namespace) == {WORK: 3, FEED: 0, OUT: 0}
    assert owners(Path(system.state.arena)) <= {entry["instance"] for entry in processes}
    assert set(marked(system.data)) <= {entry["pid"] for entry in processes} | {system.process.pid}
    assert {name: value for name, value in (await at_rest(system, 10.0)).held.items() if value} == {}


async def test_a_start_after_everything_was_killed_is_clean(tmp_path: Path, root: Path) -> None:
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        with paced_system(tmp_path, root, scale="") as system:
            if number:
                await assert_clean(system)
            await killed_under_load(system, chance.uniform(0.0, 3.0))
    began = time.monotonic()
    with paced_system(tmp_path, root, scale="") as system:
        print(f"\nready {time.monotonic() - began:.1f} s after everything was killed")
        await assert_clean(system)
        async with httpx.AsyncClient(base_url=system.url, timeout=180) as client:
            heard = await listen(client)
            assert differences(heard, await listen(client)) == []
    folder = DataFolder(tmp_path / "data")
    assert [path.name for path in folder.run.iterdir()] == ["lock"]
    assert not folder.arena.exists()
    assert list(marked(folder.root)) == []
    assert {path.name for path in folder.root.iterdir()} == {"nats", "logs", "run"}
