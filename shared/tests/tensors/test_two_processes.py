"""Blocks between processes, over both stores that cross a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from omnistage.errors import TensorGone
from omnistage.tensors import RedisTensorStore, ShmTensorStore, TensorStore
from omnistage.testing.tensor_peer import NAMESPACE, Peer, Peers, pattern

MIB = 1 << 20
LEASE_S = 60.0


@pytest.fixture(params=["shm", pytest.param("redis", marks=pytest.mark.integration)])
async def pair(
    request: pytest.FixtureRequest, peers: Peers, folder: Path, redis_url: str
) -> AsyncIterator[tuple[TensorStore, Peer]]:
    """A store here, and one in another process."""
    if request.param == "shm":
        store: TensorStore = await ShmTensorStore.open(
            folder, namespace=NAMESPACE, instance="here", capacity_bytes=16 * MIB
        )
        yield store, await peers.start("shm", folder, 16 * MIB)
    else:
        store = await RedisTensorStore.open(redis_url, namespace=NAMESPACE)
        yield store, await peers.start("redis", redis_url)
    await store.close()


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 262_145, 5 * MIB])
async def test_bytes_cross_in_both_directions(pair: tuple[TensorStore, Peer], nbytes: int) -> None:
    here, there = pair
    ref = await there.put(nbytes, seed=5)
    assert np.array_equal(await here.get(ref), pattern(nbytes, 5))
    sent = await here.put(pattern(nbytes, 6), request_id="r", lease_s=LEASE_S)
    assert await there.call("get", ref=sent) == {"checksum": sent.checksum, "nbytes": nbytes}


async def test_a_reader_in_another_process_frees_the_writers_block(pair: tuple[TensorStore, Peer]) -> None:
    here, there = pair
    ref = await here.put(pattern(100_000, 1), request_id="r", lease_s=LEASE_S)
    await there.call("release", ref=ref)
    with pytest.raises(TensorGone):
        await here.get(ref)
    await here.sweep()
    assert here.usage()[0] == 0
    assert await there.call("get", ref=ref) == {"error": "tensor_gone"}


async def test_forget_leaves_the_other_process_alone(pair: tuple[TensorStore, Peer]) -> None:
    here, there = pair
    ref = await there.put(1000, request_id="same")
    assert await here.forget("same") == 0
    assert (await here.get(ref)).nbytes == 1000
    assert await there.call("forget", request_id="same") == 1
    with pytest.raises(TensorGone):
        await here.get(ref)
