from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from omnistage.testing.containers import docker_answers, valkey_container
from omnistage.testing.servers import running_valkey
from omnistage.testing.tensor_peer import Peers


@pytest.fixture
def folder() -> Iterator[Path]:
    """An arena's folder on tmpfs, where there is one."""
    parent = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="omnistage-test-", dir=parent if parent.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


FULL_SOON = {"maxmemory": "24mb", "maxmemory-policy": "noeviction"}


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with running_valkey() as server:
        yield server.url


@pytest.fixture(scope="session")
def small_redis_url() -> Iterator[str]:
    """A tensor server that is full after a few MiB."""
    with running_valkey(FULL_SOON) as server:
        yield server.url


@pytest.fixture(scope="session", params=["packaged", "container"] if docker_answers() else ["packaged"])
def redis_urls(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A tensor server and one that is full after a few MiB: the packaged and, where there is Docker, the public one."""
    if request.param == "packaged":
        yield request.getfixturevalue("redis_url"), request.getfixturevalue("small_redis_url")
    else:
        with valkey_container() as url, valkey_container(FULL_SOON) as small_url:
            yield url, small_url


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Starts processes with a store of their own."""
    async with Peers() as started:
        yield started
