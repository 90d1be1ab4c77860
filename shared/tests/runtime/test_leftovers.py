"""Blocks of requests that ended while their writer was cut off; and waiting for a tensor server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.errors import TensorError, TensorGone, TensorUnavailable
from omnistage.runtime.context import REQUESTS_BUCKET
from omnistage.runtime.leftovers import forget_ended
from omnistage.runtime.patience import patiently
from omnistage.tensors.plane import TensorPlane, memory_plane, open_plane
from omnistage.tensors.store import Array
from omnistage.testing.servers import ValkeyServer
from omnistage.transport.memory import MemoryBroker, MemoryBus

LARGE = np.arange(100_000)


async def test_only_what_is_over_and_not_held_is_forgotten() -> None:
    tombstones = await MemoryBus(MemoryBroker(), "t").key_value(REQUESTS_BUCKET)
    plane = memory_plane()
    payloads = {name: await plane.pack(LARGE, request_id=name, lease_s=60) for name in ("over", "held", "running")}
    for request_id in ("over", "held", "unknown"):
        await tombstones.put(request_id, b"done")
    assert await forget_ended(plane, tombstones, ("held",)) == 1
    assert set(plane.published()) == {"held", "running"}
    with pytest.raises(TensorGone):
        await plane.unpack(payloads["over"])
    for request_id in ("held", "running"):
        assert (await plane.unpack(payloads[request_id]) == LARGE).all()
    assert await forget_ended(plane, tombstones, ()) == 1
    assert plane.published() == ("running",)
    await plane.close()


async def test_a_plane_remembers_no_request_beyond_its_leases_and_none_without_blocks() -> None:
    plane = memory_plane()
    await plane.pack(np.arange(3), request_id="inline", lease_s=60)
    await plane.pack(LARGE, request_id="short", lease_s=0.05)
    await plane.pack(LARGE, request_id="long", lease_s=60)
    await plane.pack(LARGE, request_id="long", lease_s=0.05)
    assert plane.published() == ("short", "long")
    await asyncio.sleep(0.1)
    assert plane.published() == ("long",)
    await plane.forget("long")
    assert plane.published() == ()
    await plane.close()


@pytest.mark.integration
async def test_a_tensor_server_that_is_away_is_waited_for_and_a_lost_block_is_not(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path)
    server.start()
    plane: TensorPlane = await open_plane(namespace="t", instance="a", shm_bytes=0, redis_url=server.url)
    try:
        lost = await plane.pack(LARGE, request_id="r", lease_s=60)
        server.kill()
        with pytest.raises(TensorUnavailable):
            await plane.unpack(lost)

        async def pack() -> Any:
            return await plane.pack(LARGE, request_id="r", lease_s=60)

        async def unpack(payload: Any) -> Array:
            return await plane.unpack(payload)

        packing = asyncio.ensure_future(patiently(pack, TensorUnavailable))
        reading = asyncio.ensure_future(patiently(lambda: unpack(lost), TensorUnavailable))
        done, _ = await asyncio.wait({packing, reading}, timeout=0.5)
        assert done == set()
        server.start()
        assert (await plane.unpack(await packing) == LARGE).all()
        with pytest.raises(TensorError) as caught:
            await reading
        assert type(caught.value) is TensorGone
    finally:
        server.stop()
        await plane.close()
