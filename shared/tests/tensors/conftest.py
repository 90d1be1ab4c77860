from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from omnistage.testing.servers import running_valkey
from omnistage.testing.tensor_peer import Peers


@pytest.fixture
def folder() -> Iterator[Path]:
    """An arena's folder on tmpfs, where there is one."""
    parent = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="omnistage-test-", dir=parent if parent.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with running_valkey() as server:
        yield server.url


@pytest.fixture(scope="session")
def small_redis_url() -> Iterator[str]:
    """A tensor server that is full after a few MiB."""
    settings = {"maxmemory": "24mb", "maxmemory-policy": "noeviction"}
    with running_valkey(settings) as server:
        yield server.url


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Starts processes with a store of their own."""
    async with Peers() as started:
        yield started
