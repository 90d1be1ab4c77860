from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnistage.contracts import Inline, Payload, TensorRef
from omnistage.errors import ConfigError, TensorCorrupt, TensorError, TensorGone, TensorStoreFull
from omnistage.tensors import Array, MemorySpace, TensorPlane, arena, memory_plane, open_plane
from omnistage.tensors.arena import partition_files

MIB = 1 << 20
LEASE_S = 60.0
SMALL = np.arange(100, dtype=np.float32)
LARGE = np.random.default_rng(0).random(MIB // 8)


async def opened(folder: Path, redis_url: str | None = None, *, instance: str = "a", shm_mib: int = 4) -> TensorPlane:
    return await open_plane(
        namespace="t",
        instance=instance,
        shm_folder=folder,
        shm_bytes=shm_mib * MIB,
        redis_url=redis_url,
        full_wait_s=0.01,
    )


async def test_small_arrays_travel_inline_and_large_ones_by_reference(folder: Path) -> None:
    writer, reader = await opened(folder), await opened(folder, instance="b")
    edge = np.zeros(16 * 1024, np.uint8)
    for array, kind in ((SMALL, Inline), (edge, Inline), (np.zeros(16 * 1024 + 1, np.uint8), TensorRef)):
        payload = await writer.pack(array, request_id="r", lease_s=LEASE_S)
        assert type(payload) is kind
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(payload), type=Payload)
        read = await reader.unpack(sent)
        assert np.array_equal(read, array)
        assert read.dtype == array.dtype
        read[...] = 0
    assert writer.stats.puts == {"inline": 2, "shm": 1}
    assert writer.stats.put_bytes == {"inline": 400 + 16384, "shm": 16385}
    assert reader.stats.gets == {"inline": 2, "shm": 1}
    assert reader.stats.get_bytes == {"inline": 400 + 16384, "shm": 16385}
    await writer.close()
    await reader.close()


@pytest.mark.integration
async def test_a_reader_on_another_host_is_served_by_redis(folder: Path, redis_url: str) -> None:
    writer = await opened(folder, redis_url)
    reader = await open_plane(namespace="t", instance="b", shm_bytes=0, redis_url=redis_url)
    far = await writer.pack(LARGE, request_id="r", lease_s=LEASE_S, same_host=False)
    near = await writer.pack(LARGE, request_id="r", lease_s=LEASE_S)
    assert isinstance(far, TensorRef)
    assert far.place == "redis"
    assert np.array_equal(await reader.unpack(far), LARGE)
    with pytest.raises(TensorGone, match="shm"):
        await reader.unpack(near)
    assert reader.stats.gone == 1
    await reader.release(near)
    await reader.release(far)
    with pytest.raises(TensorGone):
        await writer.unpack(far)
    assert await writer.forget("r") == 1
    await writer.close()
    await reader.close()


@pytest.mark.integration
async def test_a_full_arena_spills_and_a_full_plane_refuses(folder: Path, redis_url: str, small_redis_url: str) -> None:
    plane = await opened(folder, small_redis_url)
    block = np.zeros(2 * MIB, np.uint8)
    places: list[str] = []
    with pytest.raises(TensorStoreFull):
        await fill(plane, block, places)
    assert places[:3] == ["shm", "shm", "redis"]
    assert set(places[2:]) == {"redis"}
    assert plane.stats.spills == len(places) - 2 + 1
    assert plane.stats.refused == 1
    usage = plane.usage()
    assert usage["shm"] == (4 * MIB, 4 * MIB)
    assert usage["redis"][0] == (len(places) - 2) * 2 * MIB
    assert await plane.forget("r") == len(places)
    assert [used for used, _ in plane.usage().values()] == [0, 0]
    await plane.close()


async def fill(plane: TensorPlane, block: Array, places: list[str]) -> None:
    for _ in range(30):
        payload = await plane.pack(block, request_id="r", lease_s=LEASE_S)
        assert isinstance(payload, TensorRef)
        places.append(payload.place)


async def test_without_a_tensor_server(folder: Path) -> None:
    plane = await opened(folder, shm_mib=1)
    with pytest.raises(TensorStoreFull):
        await plane.pack(np.zeros(MIB + 1, np.uint8), request_id="r", lease_s=LEASE_S)
    assert (plane.stats.refused, plane.stats.spills) == (1, 0)
    with pytest.raises(TensorError, match="another host"):
        await plane.pack(LARGE, request_id="r", lease_s=LEASE_S, same_host=False)
    assert isinstance(await plane.pack(SMALL, request_id="r", lease_s=LEASE_S, same_host=False), Inline)
    await plane.close()


async def test_a_plane_needs_a_store(folder: Path) -> None:
    with pytest.raises(ConfigError):
        await open_plane(namespace="t", instance="a", shm_folder=folder, shm_bytes=0)


@pytest.mark.integration
async def test_a_plane_that_cannot_open_leaves_nothing(folder: Path) -> None:
    with pytest.raises(TensorError):
        await opened(folder, "redis://127.0.0.1:1")
    assert partition_files(folder) == []


@pytest.mark.integration
async def test_an_error_of_one_store_does_not_keep_the_others_from_forgetting(folder: Path, redis_url: str) -> None:
    plane = await opened(folder, redis_url)
    near = await plane.pack(LARGE, request_id="r", lease_s=LEASE_S)
    assert plane._far is not None
    await plane.pack(LARGE, request_id="r", lease_s=LEASE_S, same_host=False)
    await plane._far.close()
    with pytest.raises(TensorError, match="closed"):
        await plane.forget("r")
    with pytest.raises(TensorGone):
        await plane.unpack(near)
    await plane.close()


async def test_release_and_sweep(folder: Path) -> None:
    plane = await opened(folder)
    inline = await plane.pack(SMALL, request_id="r", lease_s=LEASE_S)
    await plane.release(inline)
    assert np.array_equal(await plane.unpack(inline), SMALL)
    ref = await plane.pack(LARGE, request_id="r", lease_s=0.0)
    assert await plane.sweep() == 1
    with pytest.raises(TensorGone):
        await plane.unpack(ref)
    await plane.close()
    await plane.close()


@pytest.mark.parametrize(
    "payload",
    [
        Inline(data=b"12345", dtype="float32", shape=(1,)),
        Inline(data=b"1234", dtype="float32", shape=(2,)),
        Inline(data=b"12345678", dtype="object", shape=(1,)),
        Inline(data=b"1234", dtype="no such type", shape=(1,)),
        Inline(data=b"1234", dtype="float32", shape=(-1, -1)),
    ],
)
async def test_malformed_inline_payloads_are_corrupt(payload: Inline) -> None:
    plane = memory_plane()
    with pytest.raises(TensorCorrupt):
        await plane.unpack(payload)
    assert plane.stats.corrupt == 1


async def test_planes_of_one_space_meet() -> None:
    space = MemorySpace()
    writer, reader = memory_plane(space), memory_plane(space)
    payload = await writer.pack(LARGE, request_id="r", lease_s=LEASE_S)
    assert isinstance(payload, TensorRef)
    assert payload.place == "memory"
    assert np.array_equal(await reader.unpack(payload), LARGE)
    with pytest.raises(TensorGone):
        await memory_plane().unpack(payload)
    await reader.release(payload)
    assert writer.usage() == {"memory": (0, 0)}


async def test_versions_with_another_layout_do_not_share_an_arena(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await opened(folder)
    monkeypatch.setattr(arena, "MAGIC", arena.MAGIC + 1)
    later = await opened(folder, instance="b")
    assert later.locality not in ("", one.locality)
    await one.close()
    await later.close()


async def test_locality_is_the_arena(folder: Path, tmp_path: Path) -> None:
    one, two, other = await opened(folder), await opened(folder, instance="b"), await opened(tmp_path / "arena")
    assert one.locality == two.locality != ""
    assert other.locality != one.locality
    assert memory_plane().locality == ""
    for plane in (one, two, other):
        await plane.close()
