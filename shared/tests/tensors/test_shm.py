"""The arena beyond the common suite: room, layout, files and descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnistage.errors import ConfigError, TensorError, TensorGone, TensorStoreFull
from omnistage.tensors import ShmTensorStore, default_folder, sweep_folder
from omnistage.tensors.arena import PartitionMap, file_bytes, is_partition_name, partition_files
from omnistage.tensors.ownership import create_partition, open_partition
from omnistage.tensors.slabs import UNIT_BYTES

MIB = 1 << 20
LEASE_S = 60.0


async def opened(folder: Path, capacity_bytes: int = 4 * MIB, full_wait_s: float = 0.01) -> ShmTensorStore:
    return await ShmTensorStore.open(
        folder, namespace="t", instance="a", capacity_bytes=capacity_bytes, full_wait_s=full_wait_s
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def can_mount(folder: Path) -> bool:
    tool = shutil.which("mount")
    if tool is None or os.geteuid() != 0:
        return False
    return subprocess.run([tool, "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False).returncode == 0


@pytest.fixture
def tiny(folder: Path) -> Iterator[tuple[Path, int]]:
    """A folder, and a capacity that its filesystem has no room for: on a tmpfs of 2 MiB if one may be mounted."""
    if not can_mount(folder):
        yield folder, 1 << 50
        return
    try:
        yield folder, 2 * MIB
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("is_taken_meanwhile", [False, True])
async def test_a_filesystem_without_room_is_an_error_at_the_start(
    tiny: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, is_taken_meanwhile: bool
) -> None:
    """Also if the room is taken between the look at it and the allocation: an error then too, and no SIGBUS."""
    folder, capacity_bytes = tiny
    size = file_bytes(capacity_bytes // UNIT_BYTES)
    if is_taken_meanwhile:
        plenty = types.SimpleNamespace(f_bavail=1 << 40, f_frsize=1 << 20)
        monkeypatch.setattr(os, "statvfs", lambda _: plenty)
    with pytest.raises(ConfigError) as caught:
        await opened(folder, capacity_bytes)
    assert str(folder) in caught.value.message
    assert str(size) in caught.value.message
    assert names(folder) == []


async def test_a_filesystem_that_is_full_later_does_no_harm(tiny: tuple[Path, int]) -> None:
    folder, _ = tiny
    store = await opened(folder, MIB)
    with (folder / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
        for _ in range(8):
            other.write(bytes(MIB // 2))
    refs = [await store.put(np.ones(MIB // 2, np.uint8), request_id="r", lease_s=LEASE_S) for _ in range(2)]
    with pytest.raises(TensorStoreFull):
        await store.put(np.ones(MIB, np.uint8), request_id="r", lease_s=LEASE_S)
    for ref in refs:
        assert (await store.get(ref)).sum() == MIB // 2
    await store.forget("r")
    await store.close()


async def test_a_cancelled_put_gives_its_room_back_by_itself(folder: Path) -> None:
    store = await opened(folder, 40 * MIB)
    big, ones = np.zeros(16 * MIB, np.uint8), np.ones(16 * MIB, np.uint8)
    cancelled = 0
    for pause_s in np.linspace(0, 0.01, 40):
        async with asyncio.TaskGroup() as group:
            putting = group.create_task(store.put(big, request_id="r", lease_s=LEASE_S))
            await asyncio.sleep(pause_s)
            putting.cancel()
        if putting.cancelled():
            cancelled += 1
            next_ref = await store.put(ones, request_id="r", lease_s=LEASE_S)
            assert np.array_equal(await store.get(next_ref), ones)
            await store.release(next_ref)
        else:
            await store.release(putting.result())
        async with asyncio.timeout(5):
            while store.usage()[0]:
                await asyncio.sleep(0.001)
    assert cancelled > 0
    await store.close()


async def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        await opened(tmp_path / "file" / "arena")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="link"):
        await opened(tmp_path / "link")


def test_the_file_has_all_of_its_storage_from_the_start(folder: Path) -> None:
    partition = create_partition(folder, "t", "a", 256)
    status = partition.view.path.stat()
    assert status.st_size == file_bytes(256)
    assert status.st_blocks * 512 >= status.st_size
    assert status.st_mode & 0o077 == 0
    partition.close()
    assert partition_files(folder) == []


async def test_put_waits_for_room(folder: Path) -> None:
    store = await opened(folder, MIB, full_wait_s=30)
    ref = await store.put(np.zeros(MIB, np.uint8), request_id="r", lease_s=LEASE_S)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(store.put(np.ones(MIB, np.uint8), request_id="r", lease_s=LEASE_S))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await store.release(ref)
    assert (await store.get(waiting.result())).sum() == MIB
    with pytest.raises(TensorStoreFull, match=str(MIB + 1)):
        await store.put(np.zeros(MIB + 1, np.uint8), request_id="r", lease_s=LEASE_S)
    await store.forget("r")
    await store.close()


async def test_a_full_partition_takes_back_what_is_past_its_lease(folder: Path) -> None:
    store = await opened(folder, MIB)
    over = await store.put(np.zeros(MIB, np.uint8), request_id="r", lease_s=0.02)
    await asyncio.sleep(0.03)
    ref = await store.put(np.ones(MIB, np.uint8), request_id="r", lease_s=LEASE_S)
    assert (await store.get(ref)).sum() == MIB
    with pytest.raises(TensorGone):
        await store.get(over)
    await store.forget("r")
    await store.close()


async def test_descriptors_and_files_do_not_grow(folder: Path) -> None:
    async def go(count: int) -> None:
        for number in range(count):
            ref = await writer.put(np.full(300 * number, number), request_id="r", lease_s=LEASE_S)
            assert (await reader.get(ref)).size == 300 * number
            await reader.release(ref)

    writer, reader = await opened(folder, 8 * MIB), await opened(folder, MIB)
    await go(10)
    before = len(names(Path("/dev/fd")))
    await go(1000)
    assert len(names(Path("/dev/fd"))) == before
    assert len(partition_files(folder)) == 2
    assert writer.usage()[0] == 0
    await writer.close()
    await reader.close()
    assert names(folder) == []


async def test_readers_let_go_of_partitions_that_were_removed(folder: Path) -> None:
    reader = await opened(folder, MIB)
    for _ in range(30):
        writer = await opened(folder, MIB)
        ref = await writer.put(np.arange(10), request_id="r", lease_s=LEASE_S)
        await reader.get(ref)
        await writer.forget("r")
        await writer.close()
    assert len(deleted_files(folder)) >= 30
    await reader.sweep()
    assert deleted_files(folder) == []
    await reader.close()


def deleted_files(folder: Path) -> list[str]:
    """Files of a folder that this process still has mapped though they are removed."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in maps if str(folder) in line and line.endswith("(deleted)")]


async def test_references_to_no_block_are_gone(folder: Path) -> None:
    store = await opened(folder)
    ref = await store.put(np.arange(10), request_id="r", lease_s=LEASE_S)
    for changes in (
        {"offset": ref.offset + 1},
        {"offset": ref.offset + UNIT_BYTES},
        {"offset": -UNIT_BYTES},
        {"offset": 1 << 62},
        {"offset": 0},
        {"id": "t.a.0123456789abcdef.arena"},
        {"id": f"../{folder.name}/{ref.id}"},
        {"generation": 0},
        {"generation": 1 << 64},
        {"generation": -2},
    ):
        made_up = msgspec.structs.replace(ref, **changes)
        with pytest.raises(TensorGone):
            await store.get(made_up)
        await store.release(made_up)
    for nbytes in (-1, 0, 79, 1 << 40):
        with pytest.raises(TensorGone):
            await store.get(msgspec.structs.replace(ref, nbytes=nbytes))
    other = msgspec.structs.replace(ref, generation=0, offset=ref.offset + UNIT_BYTES)
    with pytest.raises(TensorGone):
        await store.get(other)
    assert (await store.get(ref)).sum() == 45
    await store.forget("r")
    await store.close()


async def test_a_late_release_does_not_free_a_later_block(folder: Path) -> None:
    writer, reader = await opened(folder), await opened(folder, MIB)
    old = await writer.put(np.zeros(10), request_id="r", lease_s=LEASE_S)
    await writer.release(old)
    new = await writer.put(np.ones(10), request_id="r", lease_s=LEASE_S)
    assert (new.id, new.offset) == (old.id, old.offset)
    await reader.release(old)
    reader._map(old)._table[reader._map(old).unit_at(old.offset), 1] = old.generation
    reader._map(old)._head[2] = 1
    assert writer.usage()[0] == UNIT_BYTES
    assert (await reader.get(new)).sum() == 10
    await writer.forget("r")
    await writer.close()
    await reader.close()


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"omniarn1" + b"\xff" * 8, bytes(8192)])
def test_files_that_are_no_partitions_are_swept_and_never_mapped(folder: Path, content: bytes) -> None:
    path = folder / "t.a.0123456789abcdef.arena"
    path.write_bytes(content)
    with pytest.raises(TensorGone):
        PartitionMap.open(folder, path.name)
    sweep_folder(folder)
    assert not path.exists()


def test_a_partition_with_a_contradictory_table_is_not_adopted(folder: Path) -> None:
    partition = create_partition(folder, "t", "a", 256)
    ref_span = partition.allocate(100)
    assert ref_span is not None
    partition.write(ref_span, np.arange(10), 1, 1 << 62)
    partition.view._table[ref_span.unit, 5] = 1000
    partition.close()
    other = open_partition(folder, namespace="t", instance="a", capacity_bytes=256 * UNIT_BYTES)
    assert other.name != partition.name
    other.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("omni.talker-1.0123456789abcdef.arena", True),
        ("omni.talker-1.0123456789abcdef.arena\n", False),
        ("../omni.talker-1.0123456789abcdef.arena", False),
        ("omni.talker-1.0123456789ABCDEF.arena", False),
        ("omni.0123456789abcdef.arena", False),
    ],
)
def test_names_of_partitions(name: str, expected: bool) -> None:
    assert is_partition_name(name) is expected


def test_instances_of_any_name_have_a_partition(folder: Path) -> None:
    partition = open_partition(folder, namespace="Omni.1", instance="codec/ü 3", capacity_bytes=1)
    assert is_partition_name(partition.name)
    assert partition.name.startswith("omni-1.codec-")
    assert partition.capacity_bytes == UNIT_BYTES
    partition.close()


def test_the_default_folder_is_the_users_own() -> None:
    folder = default_folder("omni")
    assert folder.name == f"omnistage-{os.getuid()}-omni"
    assert folder.parent.is_dir()


async def test_usage_and_sweep_after_close(folder: Path) -> None:
    store = await opened(folder)
    await store.close()
    assert store.usage() == (0, 4 * MIB)
    with pytest.raises(TensorError, match="closed"):
        await store.sweep()
