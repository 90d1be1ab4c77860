"""What an arena is worth when processes are killed: real processes, real SIGKILL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnistage.contracts import TensorRef
from omnistage.errors import TensorError, TensorGone
from omnistage.tensors import ShmTensorStore, sweep_folder
from omnistage.tensors.arena import partition_files, request_hash
from omnistage.tensors.ownership import forget_dead, open_partition, owning
from omnistage.testing.tensor_peer import NAMESPACE, Peer, Peers, pattern

MIB = 1 << 20
CAPACITY = 24 * MIB


@pytest.fixture
async def reader(folder: Path) -> AsyncIterator[ShmTensorStore]:
    store = await ShmTensorStore.open(folder, namespace=NAMESPACE, instance="reader", capacity_bytes=MIB)
    yield store
    await store.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def start(peers: Peers, folder: Path) -> Peer:
    return await peers.start("shm", folder, CAPACITY)


async def test_a_killed_writers_published_blocks_stay_readable(
    peers: Peers, folder: Path, reader: ShmTensorStore
) -> None:
    writer = await start(peers, folder)
    refs = [await writer.put(2 * MIB, seed=seed) for seed in range(8)]
    reading = asyncio.gather(*(reader.get(ref) for ref in refs))
    await writer.kill()
    for seed, array in enumerate(await reading):
        assert np.array_equal(array, pattern(2 * MIB, seed))
    assert await reader.sweep() == 0
    for seed, ref in enumerate(refs):
        assert np.array_equal(await reader.get(ref), pattern(2 * MIB, seed))
    for ref in refs:
        await reader.release(ref)
    assert await reader.sweep() == 8
    assert partition_files(folder) == [reader.partition.view.path]
    with pytest.raises(TensorGone):
        await reader.get(refs[0])


async def test_a_killed_reader_takes_nothing_with_it(peers: Peers, folder: Path) -> None:
    writer, first, second = [await start(peers, folder) for _ in range(3)]
    ref = await writer.put(MIB, seed=3)
    read = await first.call("get", ref=ref)
    await first.kill()
    assert await second.call("get", ref=ref) == read
    assert read == {"checksum": ref.checksum, "nbytes": MIB}
    assert await writer.call("usage") == MIB
    await second.call("release", ref=ref)
    assert await writer.call("usage") == 0


async def test_nothing_is_left_when_all_have_been_killed(peers: Peers, folder: Path) -> None:
    killed = [await start(peers, folder) for _ in range(3)]
    over = [await peer.put(5000, lease_s=0.05) for peer in killed]
    held = await killed[0].put(5000, request_id="held")
    await killed[1].call("allocate", nbytes=MIB)
    for peer in killed:
        await peer.kill()
    await asyncio.sleep(0.1)
    assert sweep_folder(folder) == len(over)
    assert names(folder) == [held.id]
    assert forget_dead(folder, request_hash("held")) == 1
    assert sweep_folder(folder, remove=True) == 1
    assert folder.name not in names(folder.parent)


async def test_forget_reaches_the_blocks_of_dead_writers_only(
    peers: Peers, folder: Path, reader: ShmTensorStore
) -> None:
    dead, alive = [await start(peers, folder) for _ in range(2)]
    gone = [await dead.put(5000, request_id="one") for _ in range(3)]
    other = await dead.put(5000, request_id="two")
    kept = await alive.put(5000, request_id="one")
    await dead.kill()
    assert await reader.forget("one") == 3
    assert await reader.forget("one") == 0
    for ref in gone:
        with pytest.raises(TensorGone):
            await reader.get(ref)
    for ref in (other, kept):
        assert (await reader.get(ref)).nbytes == 5000


async def test_a_restarted_writer_adopts_the_partition_with_what_it_still_holds(
    peers: Peers, folder: Path, reader: ShmTensorStore
) -> None:
    first = await start(peers, folder)
    held = await first.put(3 * MIB, seed=1)
    over = await first.put(8 * MIB, seed=2)
    await first.call("release", ref=over)
    await first.call("allocate", nbytes=9 * MIB)
    await first.kill()
    second = await start(peers, folder)
    assert len(partition_files(folder)) == 2
    assert await second.call("usage") == 3 * MIB
    refs = [await second.put(3 * MIB, seed=seed) for seed in range(4, 9)]
    assert {ref.id for ref in refs} == {held.id}
    for seed, ref in [(1, held), *enumerate(refs, 4)]:
        assert np.array_equal(await reader.get(ref), pattern(3 * MIB, seed))
    with pytest.raises(TensorGone):
        await reader.get(over)


async def test_a_partition_has_one_owner(peers: Peers, folder: Path, reader: ShmTensorStore) -> None:
    writer = await start(peers, folder)
    ref = await writer.put(5000)
    path = folder / ref.id
    with owning(path) as descriptor:
        assert descriptor is None
    assert await reader.sweep() == 0
    second = open_partition(folder, namespace=NAMESPACE, instance="second", capacity_bytes=CAPACITY)
    assert second.name != ref.id
    second.close()
    await writer.kill()
    with owning(path) as descriptor:
        assert descriptor is not None
        with owning(path) as again:
            assert again is None


async def test_a_stopped_process_is_not_taken_for_dead(peers: Peers, folder: Path, reader: ShmTensorStore) -> None:
    writer = await start(peers, folder)
    over = await writer.put(5000, lease_s=0.01)
    os.kill(writer.pid, 19)
    try:
        await asyncio.sleep(0.05)
        assert await reader.sweep() == 0
        assert (folder / over.id).exists()
    finally:
        os.kill(writer.pid, 18)


async def test_copies_are_never_torn(peers: Peers, folder: Path, reader: ShmTensorStore) -> None:
    """A writer reuses places as fast as it can, while another process reads: right or gone, and both happen."""
    writer = await start(peers, folder)
    churning = asyncio.ensure_future(writer.call("churn", nbytes=4 * MIB))
    refs: list[TensorRef] = [msgspec.convert(await churning, TensorRef)]

    async def follow() -> None:
        while True:
            refs.append(msgspec.convert(await writer.line(), TensorRef))

    right = overtaken = 0
    following = asyncio.ensure_future(follow())
    try:
        async with asyncio.timeout(60):
            while right < 20 or overtaken < 5:
                await asyncio.sleep(0)
                try:
                    array = await reader.get(refs[-1])
                except TensorGone as error:
                    overtaken += "while it was read" in error.message
                    continue
                assert array.min() == array.max()
                right += 1
    finally:
        following.cancel()


async def test_writers_killed_at_any_moment_leave_a_sound_arena(
    peers: Peers, folder: Path, reader: ShmTensorStore
) -> None:
    """Each writer is killed in the middle of its work, and its successor takes the partition over."""
    delays = np.random.default_rng(7).uniform(0, 0.03, 8)
    held: list[tuple[int, TensorRef]] = []
    for seed, delay_s in enumerate(delays):
        writer = await start(peers, folder)
        held.append((seed, await writer.put(MIB, seed=seed, request_id="held")))
        await writer.call("churn", nbytes=2 * MIB)
        await asyncio.sleep(delay_s)
        await writer.kill()
        # What it had published lives as long as its request, and eight times that is more than the arena holds.
        await reader.forget("churn")
        for number, ref in held:
            assert np.array_equal(await reader.get(ref), pattern(MIB, number))
    assert len({ref.id for _, ref in held}) == 1
    assert await reader.forget("held") == len(held)
    await reader.sweep()
    assert partition_files(folder) == [reader.partition.view.path]


def test_a_fork_cannot_write_into_its_parents_partition(folder: Path) -> None:
    partition = open_partition(folder, namespace="t", instance="a", capacity_bytes=MIB)
    partition._process = os.getpid() + 1
    with pytest.raises(TensorError, match="fork"):
        partition.allocate(100)
    partition._process = os.getpid()
    partition.close()


async def test_a_sweep_of_all_processes_at_once_is_safe(peers: Peers, folder: Path) -> None:
    survivors = [await start(peers, folder) for _ in range(3)]
    dead = [await start(peers, folder) for _ in range(2)]
    for peer in dead:
        for _ in range(20):
            await peer.put(5000, request_id="done")
    for peer in dead:
        await peer.kill()
    forgotten = await asyncio.gather(*(peer.call("forget", request_id="done") for peer in survivors))
    assert 0 <= sum(forgotten) <= 40
    for _ in range(20):
        await asyncio.gather(*(peer.call("sweep") for peer in survivors))
        await asyncio.gather(*(peer.call("forget", request_id="done") for peer in survivors))
    assert len(partition_files(folder)) == 3
