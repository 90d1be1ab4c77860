from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import redis.asyncio

from omnistage.errors import ConfigError, TensorError
from omnistage.tensors import RedisTensorStore
from omnistage.testing.servers import running_valkey

pytestmark = pytest.mark.integration

LEASE_S = 60.0


async def test_keys_carry_the_request_and_end_with_the_lease(redis_url: str) -> None:
    store = await RedisTensorStore.open(redis_url, namespace="keys")
    client = redis.asyncio.Redis.from_url(redis_url)
    ref = await store.put(np.arange(10), request_id="req-1", lease_s=12)
    keys = [key async for key in client.scan_iter(match="keys:*")]
    assert keys == [f"{ref.id}:{ref.generation}".encode()]
    assert keys[0].startswith(b"keys:t:req-1:")
    assert 0 < await client.pttl(keys[0]) <= 12_000
    await store.release(ref)
    assert [key async for key in client.scan_iter(match="keys:*")] == []
    await client.aclose()
    await store.close()


async def test_a_reference_cannot_reach_keys_of_others(redis_url: str) -> None:
    mine = await RedisTensorStore.open(redis_url, namespace="one")
    theirs = await RedisTensorStore.open(redis_url, namespace="two")
    ref = await theirs.put(np.arange(10), request_id="r", lease_s=LEASE_S)
    with pytest.raises(TensorError, match="namespace"):
        await mine.get(ref)
    await mine.release(ref)
    assert (await theirs.get(ref)).sum() == 45
    await theirs.forget("r")
    await mine.close()
    await theirs.close()


@pytest.mark.parametrize(("policy", "warns"), [("noeviction", False), ("allkeys-lru", True)])
async def test_a_server_that_evicts_is_warned_about(caplog: pytest.LogCaptureFixture, policy: str, warns: bool) -> None:
    settings = {"maxmemory": "24mb", "maxmemory-policy": policy}
    with running_valkey(settings) as server, caplog.at_level(logging.WARNING):
        store = await RedisTensorStore.open(server.url, namespace="t")
        assert store.usage() == (0, 24 << 20)
        await store.close()
    assert any(policy in record.getMessage() for record in caplog.records) is warns


async def test_a_server_that_goes_away_is_an_error_and_comes_back() -> None:
    with running_valkey() as server:
        store = await RedisTensorStore.open(server.url, namespace="t", timeout_s=2)
        ref = await store.put(np.arange(10), request_id="r", lease_s=LEASE_S)
        server.kill()
        for call in (
            store.put(np.arange(10), request_id="r", lease_s=LEASE_S),
            store.get(ref),
            store.release(ref),
            store.forget("r"),
            store.sweep(),
        ):
            with pytest.raises(TensorError, match="tensor server"):
                await call
        server.start()
        again = await store.put(np.arange(10), request_id="r", lease_s=LEASE_S)
        assert (await store.get(again)).sum() == 45
        await store.close()


async def test_no_server_is_an_error_without_credentials_in_it() -> None:
    with pytest.raises(TensorError) as caught:
        await RedisTensorStore.open("redis://user:secret@127.0.0.1:1", namespace="t", timeout_s=1)
    assert "127.0.0.1" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["", "http://127.0.0.1", "redis//x"])
async def test_no_address_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        await RedisTensorStore.open(url, namespace="t")


async def test_wrong_credentials_are_a_config_error() -> None:
    with running_valkey() as server:
        client = redis.asyncio.Redis.from_url(server.url)
        await client.config_set("requirepass", "right")
        await client.aclose()
        url = f"redis://:{{}}@127.0.0.1:{server.port}"
        with pytest.raises(ConfigError, match="credentials"):
            await RedisTensorStore.open(url.format("wrong"), namespace="t")
        with pytest.raises(ConfigError, match="credentials"):
            await RedisTensorStore.open(server.url, namespace="t")
        store = await RedisTensorStore.open(url.format("right"), namespace="t")
        await store.close()


async def test_many_at_once_share_the_connections(redis_url: str) -> None:
    store = await RedisTensorStore.open(redis_url, namespace="t")
    refs = await asyncio.gather(*(store.put(np.full(1000, n), request_id="r", lease_s=LEASE_S) for n in range(200)))
    for number, array in enumerate(await asyncio.gather(*(store.get(ref) for ref in refs))):
        assert (array == number).all()
    assert await store.forget("r") == 200
    await store.close()


async def test_a_write_that_was_given_up_and_lands_late_is_swept(redis_url: str) -> None:
    store = await RedisTensorStore.open(redis_url, namespace="t")
    stuck = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        stuck.set()
        await asyncio.sleep(60)

    landed = await store.put(np.arange(10), request_id="r", lease_s=LEASE_S)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store._client, "set", never)
        writing = asyncio.ensure_future(store.put(np.arange(10), request_id="r", lease_s=LEASE_S))
        await stuck.wait()
        writing.cancel()
        await asyncio.wait({writing})
    late = f"{landed.id}:{landed.generation + 2}"
    assert await store.sweep() == 0
    assert await store.forget("r") == 1
    async with redis.asyncio.Redis.from_url(redis_url) as server:
        await server.set(late, b"x")
        await store.sweep()
        assert await server.exists(late, f"{landed.id}:{landed.generation}") == 0
    await store.close()
