"""The servers that tests run against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis.asyncio

from omnistage.testing.servers import NatsServer, nats_server, running_valkey, valkey_server

pytestmark = pytest.mark.integration


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_broker_comes_back_on_its_port_and_leaves_nothing() -> None:
    async with nats_server() as server:
        url, pid, store = server.url, server.pid, server.store
        server.kill()
        server.kill()
        assert not alive(pid)
        server.start()
        assert server.url == url
        pid = server.pid
    assert not alive(pid)
    assert not store.exists()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.mkdir()
    (blocked / "jetstream").write_text("not a folder")
    server = NatsServer(blocked)
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.pid


async def test_a_tensor_server_comes_back_empty_on_its_port() -> None:
    async with valkey_server({"maxmemory": "16mb"}) as server:
        client = redis.asyncio.Redis.from_url(server.url)
        await client.set("x", b"1")
        assert await client.config_get("maxmemory") == {"maxmemory": str(16 << 20)}
        await client.aclose()
        url = server.url
        server.kill()
        server.start()
        client = redis.asyncio.Redis.from_url(server.url)
        assert server.url == url
        assert await client.get("x") is None
        await client.aclose()
        pid = server.pid
    assert not alive(pid)


def test_two_servers_at_once() -> None:
    with running_valkey() as one, running_valkey() as other:
        assert one.url != other.url
