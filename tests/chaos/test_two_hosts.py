"""Stages on a second host without shared memory: they serve, over a slow and lossy line, and when it is cut.

The line is a relay in user space, so that these tests need no privileges; test_network_namespaces.py has a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.chaos.two_hosts import STAGES, Contents, Scene, bytes_by_redis, near_host, undisturbed, watched
from tests.support.far import FarHost
from tests.support.relay import Link, Relay, relay
from tests.support.system import System

from omnistage.launcher.listening import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

DELAY_S, LOSS = 0.01, 0.01


@dataclass
class Hosts:
    system: System
    far: FarHost
    line: Relay
    expected: Contents


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with near_host(folder, root, "127.0.0.1") as system:
        expected = asyncio.run(undisturbed(system))
        with relay(Link(DELAY_S, LOSS)) as line:
            arena = folder / "far-arena"
            arena.mkdir(mode=0o700)
            far = FarHost(system, line, "127.0.0.1", folder, str(arena))
            with far.running(STAGES, [free_port() for _ in STAGES]):
                yield Hosts(system, far, line, expected)


@pytest.fixture
async def scene(hosts: Hosts) -> AsyncIterator[Scene]:
    async with watched(hosts.system, hosts.far, hosts.line.cut, hosts.line.heal, hosts.expected) as scene:
        yield scene


async def test_a_far_host_serves_over_a_slow_and_lossy_line(scene: Scene, hosts: Hosts) -> None:
    await scene.serves()
    near = {presence.locality for presence in scene.presences.ready("talker") if presence.instance != "far-talker"}
    far = {presence.locality for stage in STAGES for presence in scene.presences.ready(stage)} - near
    assert len(near) == len(far) == 1
    assert "" not in near | far
    assert hosts.line.link.lost > 0
    for service, edge in (("talker", "talker-codec"), ("codec", "codec-gateway")):
        here, there = await asyncio.to_thread(bytes_by_redis, scene.system, scene.far, service, edge)
        print(f"{edge}: {here:.0f} bytes written here and {there:.0f} there went through the tensor server")
        assert there > 0
        assert here > 0 or service == "codec"
    await scene.nothing_left()


@pytest.mark.parametrize("stage", STAGES)
async def test_streams_complete_over_a_short_cut(scene: Scene, stage: str) -> None:
    await scene.outlives_a_cut(stage, 3.0, taken_over=False)
    await scene.serves()
    await scene.nothing_left()


@pytest.mark.parametrize("stage", STAGES)
async def test_others_take_over_from_a_host_that_is_cut_off_and_it_comes_back(scene: Scene, stage: str) -> None:
    await scene.outlives_a_cut(stage, 20.0, taken_over=True)
    await scene.serves()
    await scene.nothing_left()
