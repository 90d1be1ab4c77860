"""What every tensor store must do. A test module subclasses the suite and gives it the fixtures it names."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from omnistage.contracts import TensorRef
from omnistage.errors import TensorCorrupt, TensorError, TensorGone, TensorStoreFull
from omnistage.tensors.store import Array, TensorStore

LEASE_S = 60.0

ARRAYS: dict[str, Array] = {
    **{f"dtype {name}": np.arange(-7, 8).astype(name) for name in ("bool", "int8", "int16", "int32", "int64")},
    **{f"dtype {name}": np.arange(15).astype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{f"dtype {name}": np.linspace(-3, 3, 15).astype(name) for name in ("float16", "float32", "float64")},
    "dtype complex64": (np.arange(6) + 1j * np.arange(6)).astype(np.complex64),
    "not a number": np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),
    "no axes": np.array(2.5, np.float32),
    "empty": np.zeros((0,), np.int16),
    "empty in the middle": np.zeros((3, 0, 2), np.float32),
    "four axes": np.arange(2 * 3 * 5 * 7, dtype=np.float32).reshape(2, 3, 5, 7),
    "transposed": np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1),
    "strided backwards": np.arange(100, dtype=np.int16)[::-3],
    "broadcast": np.broadcast_to(np.arange(5, dtype=np.float32), (4, 5)),
    "big-endian": np.arange(9, dtype=">f4"),
    "one byte more than a page": np.arange(4097, dtype=np.uint8),
    "just above a thread's worth": np.random.default_rng(1).random(32 * 1024 + 1),
    "9 MiB": np.random.default_rng(2).random((9, 1 << 17)),
}


def same(left: Array, right: Array) -> bool:
    """Whether two arrays have equal shape, element type and bits."""
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


class TensorStoreConformance:
    """The suite.

    Fixtures of the subclass: `store` and `peer` (two stores that reach each other's blocks, at least 32 MiB each, as
    two processes would have them), `small` (a store that is full after at most 48 MiB) and `corrupt` (a function that
    changes one byte of a block in place; it may be a coroutine function).
    """

    @pytest.mark.parametrize("name", ARRAYS)
    async def test_arrays_come_back_with_their_bits(self, store: TensorStore, peer: TensorStore, name: str) -> None:
        array = ARRAYS[name]
        ref = await store.put(array, request_id="r", lease_s=LEASE_S)
        assert (ref.shape, ref.dtype, ref.nbytes) == (array.shape, array.dtype.name, array.nbytes)
        for reader in (store, peer):
            read = await reader.get(ref)
            assert same(read, np.asarray(array, dtype=array.dtype.newbyteorder("<")))

    @pytest.mark.parametrize(
        "array", [np.array([object()]), np.array(["text"]), np.array(["2026-01-01"], "datetime64[D]")]
    )
    async def test_only_plain_numbers_are_sent(self, store: TensorStore, array: Array) -> None:
        with pytest.raises(TypeError):
            await store.put(array, request_id="r", lease_s=LEASE_S)
        assert store.usage()[0] == 0

    async def test_what_is_read_is_private(self, store: TensorStore, peer: TensorStore) -> None:
        source = np.arange(10)
        ref = await store.put(source, request_id="r", lease_s=LEASE_S)
        source[:] = 0
        first = await peer.get(ref)
        first[:] = -1
        assert same(await peer.get(ref), np.arange(10))

    async def test_blocks_do_not_mix(self, store: TensorStore, peer: TensorStore) -> None:
        arrays = [np.full(n * 777, n, np.int32) for n in range(1, 40)]
        refs = await asyncio.gather(*(store.put(a, request_id="r", lease_s=LEASE_S) for a in arrays))
        read = await asyncio.gather(*(peer.get(ref) for ref in refs))
        assert all(same(a, b) for a, b in zip(arrays, read, strict=True))
        assert len({(ref.id, ref.offset, ref.generation) for ref in refs}) == len(refs)

    @pytest.mark.parametrize("step", [-2, -1, 1, 2, 1_000_000])
    async def test_another_generation_is_gone(self, store: TensorStore, peer: TensorStore, step: int) -> None:
        ref = await store.put(np.arange(4), request_id="r", lease_s=LEASE_S)
        stale = msgspec.structs.replace(ref, generation=ref.generation + step)
        with pytest.raises(TensorGone):
            await peer.get(stale)
        await peer.release(stale)
        assert same(await peer.get(ref), np.arange(4))

    async def test_a_reused_place_does_not_answer_to_old_references(self, store: TensorStore) -> None:
        old = await store.put(np.zeros(100), request_id="r", lease_s=LEASE_S)
        await store.release(old)
        new = await store.put(np.ones(100), request_id="r", lease_s=LEASE_S)
        with pytest.raises(TensorGone):
            await store.get(old)
        await store.release(old)
        assert same(await store.get(new), np.ones(100))

    @pytest.mark.parametrize("change", [{"id": "nothing"}, {"id": "../../etc/passwd"}, {"id": ""}])
    async def test_made_up_references_are_gone(
        self, store: TensorStore, peer: TensorStore, change: dict[str, Any]
    ) -> None:
        ref = await store.put(np.arange(4), request_id="r", lease_s=LEASE_S)
        made_up = msgspec.structs.replace(ref, **change)
        with pytest.raises(TensorGone):
            await peer.get(made_up)
        await peer.release(made_up)

    @pytest.mark.parametrize(
        "change", [{"nbytes": 31}, {"shape": (5,)}, {"shape": (-4,)}, {"dtype": "float32"}, {"dtype": "none such"}]
    )
    async def test_a_reference_that_does_not_fit_its_block_is_an_error(
        self, store: TensorStore, peer: TensorStore, change: dict[str, Any]
    ) -> None:
        ref = await store.put(np.arange(4), request_id="r", lease_s=LEASE_S)
        with pytest.raises((TensorCorrupt, TensorGone)):
            await peer.get(msgspec.structs.replace(ref, **change))

    async def test_released_is_gone_for_all_and_may_be_repeated(self, store: TensorStore, peer: TensorStore) -> None:
        for releaser, other in ((store, peer), (peer, store)):
            ref = await store.put(np.arange(4), request_id="r", lease_s=LEASE_S)
            await releaser.release(ref)
            await releaser.release(ref)
            await other.release(ref)
            for reader in (store, peer):
                with pytest.raises(TensorGone):
                    await reader.get(ref)

    async def test_after_its_lease_a_block_is_gone_and_swept(self, store: TensorStore, peer: TensorStore) -> None:
        over = await store.put(np.arange(1000), request_id="r", lease_s=0.05)
        kept = await store.put(np.arange(5), request_id="r", lease_s=LEASE_S)
        await asyncio.sleep(0.1)
        for reader in (store, peer):
            with pytest.raises(TensorGone):
                await reader.get(over)
        assert await store.sweep() == 1
        assert await store.sweep() == 0
        assert same(await peer.get(kept), np.arange(5))

    async def test_forget_takes_the_blocks_of_one_request_and_one_writer(
        self, store: TensorStore, peer: TensorStore
    ) -> None:
        mine = [await store.put(np.arange(n), request_id="mine", lease_s=LEASE_S) for n in range(1, 6)]
        other = await store.put(np.arange(7), request_id="mine2", lease_s=LEASE_S)
        successor = await peer.put(np.arange(8), request_id="mine", lease_s=LEASE_S)
        await peer.release(mine[0])
        assert await store.forget("mine") == 4
        assert await store.forget("mine") == 0
        assert await store.forget("never seen") == 0
        for ref in mine:
            with pytest.raises(TensorGone):
                await peer.get(ref)
        assert same(await peer.get(other), np.arange(7))
        assert same(await store.get(successor), np.arange(8))

    async def test_usage_follows_puts_and_releases(self, store: TensorStore, peer: TensorStore) -> None:
        assert store.usage()[0] == 0
        refs = [await store.put(np.zeros(100_000, np.uint8), request_id="r", lease_s=LEASE_S) for _ in range(3)]
        assert 300_000 <= store.usage()[0] <= 400_000
        await store.release(refs[0])
        assert 200_000 <= store.usage()[0] <= 270_000
        await peer.release(refs[1])
        await store.sweep()
        assert 100_000 <= store.usage()[0] <= 135_000
        await store.forget("r")
        assert store.usage()[0] == 0
        assert peer.usage()[0] == 0

    async def test_a_full_store_refuses_and_recovers(self, small: TensorStore) -> None:
        block = np.random.default_rng(3).random(1 << 17)
        refs: list[TensorRef] = []
        with pytest.raises(TensorStoreFull):
            await _fill(small, block, refs)
        assert refs
        for ref in refs:
            assert same(await small.get(ref), block)
        await small.forget("r")
        again = await _put_in_time(small, block)
        assert same(await small.get(again), block)

    async def test_a_changed_byte_is_found(self, store: TensorStore, peer: TensorStore, corrupt: Any) -> None:
        for size in (10, 100_000):
            ref = await store.put(np.arange(size), request_id="r", lease_s=LEASE_S)
            done = corrupt(ref)
            if done is not None:
                await done
            with pytest.raises(TensorCorrupt):
                await peer.get(ref)

    async def test_published_blocks_outlive_their_writers_store(self, store: TensorStore, peer: TensorStore) -> None:
        ref = await store.put(np.arange(6), request_id="r", lease_s=LEASE_S)
        await store.close()
        await store.close()
        assert same(await peer.get(ref), np.arange(6))
        await peer.release(ref)
        with pytest.raises(TensorGone):
            await peer.get(ref)

    async def test_a_closed_store_says_so(self, store: TensorStore, peer: TensorStore) -> None:
        ref = await peer.put(np.arange(6), request_id="r", lease_s=LEASE_S)
        await store.close()
        with pytest.raises(TensorError, match="closed"):
            await store.get(ref)
        with pytest.raises(TensorError, match="closed"):
            await store.put(np.arange(6), request_id="r", lease_s=LEASE_S)

    async def test_a_cancelled_put_leaks_nothing(self, store: TensorStore) -> None:
        big = np.zeros(16 << 20, np.uint8)
        for pause_s in (0, 0, 0.001, 0.002, 0.004, 0.008):
            async with asyncio.TaskGroup() as group:
                putting = group.create_task(store.put(big, request_id="r", lease_s=LEASE_S))
                await asyncio.sleep(pause_s)
                putting.cancel()
            await store.forget("r")
        async with asyncio.timeout(5):
            while store.usage()[0]:
                await asyncio.sleep(0.01)
                await store.forget("r")


async def _fill(store: TensorStore, array: Array, refs: list[TensorRef]) -> None:
    for _ in range(48):
        refs.append(await store.put(array, request_id="r", lease_s=LEASE_S))


async def _put_in_time(store: TensorStore, array: Array) -> TensorRef:
    """Put, given a moment: a server may free memory in the background."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await store.put(array, request_id="again", lease_s=LEASE_S)
            except TensorStoreFull:
                await asyncio.sleep(0.02)
