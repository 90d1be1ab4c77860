"""Two hosts with a real network between them: a cable of its own, packets that are lost, a /dev/shm of its own.

`make chaos` runs these; they need root. test_two_hosts.py says the same with a line in user space. What delays the
packets is that relay here too, since not every kernel has a queue that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.chaos.two_hosts import STAGES, Contents, Scene, near_host, undisturbed, watched
from tests.support.far import FarHost
from tests.support.namespaces import Namespace, NoNamespaces, second_host
from tests.support.relay import Link, relay
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.chaos_long, pytest.mark.timeout(600)]

DELAY_S, LOSS = 0.01, 0.01
METRICS_PORT = 9464


@dataclass
class Hosts:
    system: System
    far: FarHost
    cable: Namespace
    expected: Contents


@pytest.fixture(scope="module")
def cable() -> Iterator[Namespace]:
    try:
        with second_host() as host:
            yield host
    except NoNamespaces as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def hosts(cable: Namespace, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("namespaces")
    with near_host(folder, root, cable.near) as system, relay(Link(DELAY_S), cable.near) as line:
        expected = asyncio.run(undisturbed(system))
        cable.lose(LOSS)
        far = FarHost(system, line, cable.near, folder, "/dev/shm/omnistage-far", cable.within, cable.far)
        with far.running(STAGES, [METRICS_PORT + number for number, _ in enumerate(STAGES)]):
            yield Hosts(system, far, cable, expected)


@pytest.fixture
async def scene(hosts: Hosts) -> AsyncIterator[Scene]:
    async with watched(hosts.system, hosts.far, hosts.cable.cut, hosts.cable.heal, hosts.expected) as scene:
        yield scene


async def test_a_host_without_our_shared_memory_serves_though_packets_are_lost(scene: Scene, hosts: Hosts) -> None:
    await scene.serves()
    assert await asyncio.to_thread(hosts.cable.lost) > 0
    assert len({presence.locality for presence in scene.presences.ready("codec")}) == 2
    await scene.nothing_left()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("cut_s", "taken_over"), [(3.0, False), (20.0, True)], ids=["short", "long"])
async def test_a_cut_cable(scene: Scene, stage: str, cut_s: float, taken_over: bool) -> None:
    await scene.outlives_a_cut(stage, cut_s, taken_over=taken_over)
    await scene.serves()
    await scene.nothing_left()
