"""Tensors between processes of one host: blocks in the partition files of an arena (docs/adr/0006)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from omnistage.contracts import TensorRef
from omnistage.errors import TensorCorrupt, TensorError, TensorGone, TensorStoreFull
from omnistage.tensors.arena import PartitionMap, request_hash
from omnistage.tensors.ownership import forget_dead, open_partition, sweep_folder
from omnistage.tensors.partition import OwnedPartition
from omnistage.tensors.slabs import Span
from omnistage.tensors.store import OFF_LOOP_BYTES, Array, ByteArray, checksum, run_copy, verified, wire_dtype

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.02


class ShmTensorStore:
    """The tensor protocol over an arena. Use it on one event loop; make it with `open`.

    Args:
        folder: the arena.
        partition: this process's own.
        full_wait_s: how long `put` waits for room.
    """

    def __init__(self, folder: Path, partition: OwnedPartition, *, full_wait_s: float = 0.05) -> None:
        self._folder = folder
        self._owned: OwnedPartition | None = partition
        self._capacity_bytes = partition.capacity_bytes
        self._full_wait_s = full_wait_s
        self._maps: dict[str, PartitionMap] = {partition.name: partition.view}

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        namespace: str,
        instance: str,
        capacity_bytes: int,
        full_wait_s: float = 0.05,
    ) -> ShmTensorStore:
        """Own a partition of the arena, all of its pages in memory.

        Args:
            folder: the arena; see `ownership.default_folder`.
            namespace: of the deployment.
            instance: of the service; in the file's name, for people.
            capacity_bytes: room for blocks; the file is 1.6 % larger.
            full_wait_s: how long `put` waits for room before it raises `TensorStoreFull`.

        Raises:
            ConfigError: the folder cannot be used, or its filesystem has no room.
        """
        partition = await asyncio.to_thread(
            open_partition, folder, namespace=namespace, instance=instance, capacity_bytes=capacity_bytes
        )
        return cls(folder, partition, full_wait_s=full_wait_s)

    async def put(self, array: Array, *, request_id: str, lease_s: float) -> TensorRef:
        """See `TensorStore.put`."""
        partition = self.partition
        dtype = wire_dtype(array)
        nbytes = array.size * dtype.itemsize
        span = await self._room(partition, nbytes)
        lease = time.time() + lease_s

        def write() -> TensorRef:
            block, data = partition.write(span, array, request_hash(request_id), int(lease * 1e6))
            return TensorRef(
                place="shm",
                id=partition.name,
                offset=partition.view.offset(span.unit),
                dtype=dtype.name,
                shape=array.shape,
                nbytes=nbytes,
                generation=block.generation,
                checksum=checksum(data),
                lease=lease,
            )

        return await _write(partition, write, span, nbytes)

    async def get(self, ref: TensorRef) -> Array:
        """See `TensorStore.get`."""
        return await self._read(ref, PartitionMap.copy_out)

    async def borrow(self, ref: TensorRef) -> Array:
        """See `TensorStore.borrow`."""
        return await self._read(ref, PartitionMap.look_at)

    async def _read(self, ref: TensorRef, take: Callable[[PartitionMap, int, int, int], ByteArray]) -> Array:
        view = self._map(ref)

        def read() -> Array:
            data = take(view, ref.offset, ref.generation, ref.nbytes)
            try:
                return verified(data, ref)
            except TensorCorrupt:
                if view.is_readable(view.unit_at(ref.offset), ref.generation, ref.nbytes):
                    raise
                raise TensorGone(f"block {ref.id}@{ref.offset} was overwritten while it was read") from None

        return await run_copy(read, ref.nbytes)

    async def release(self, ref: TensorRef) -> None:
        """See `TensorStore.release`."""
        partition = self.partition
        try:
            view = self._map(ref)
            unit = view.unit_at(ref.offset)
        except TensorGone:
            return
        if ref.id == partition.name:
            partition.release(unit, ref.generation)
        else:
            view.release(unit, ref.generation)

    async def forget(self, request_id: str) -> int:
        """See `TensorStore.forget`."""
        request = request_hash(request_id)
        return self.partition.forget(request) + await asyncio.to_thread(forget_dead, self._folder, request)

    async def sweep(self) -> int:
        """See `TensorStore.sweep`."""
        reclaimed = self.partition.sweep() + await asyncio.to_thread(sweep_folder, self._folder)
        for name in [name for name in self._maps if not (self._folder / name).exists()]:
            del self._maps[name]
        return reclaimed

    def usage(self) -> tuple[int, int]:
        """See `TensorStore.usage`."""
        return 0 if self._owned is None else self._owned.used_bytes(), self._capacity_bytes

    async def close(self) -> None:
        """See `TensorStore.close`."""
        if self._owned is not None:
            partition, self._owned = self._owned, None
            self._maps.clear()
            await asyncio.to_thread(partition.close)

    @property
    def partition(self) -> OwnedPartition:
        """This process's own partition.

        Raises:
            TensorError: the store is closed.
        """
        if self._owned is None:
            raise TensorError("the store is closed")
        return self._owned

    def _map(self, ref: TensorRef) -> PartitionMap:
        if self._owned is None:
            raise TensorError("the store is closed")
        view = self._maps.get(ref.id)
        if view is None:
            view = self._maps[ref.id] = PartitionMap.open(self._folder, ref.id)
        return view

    async def _room(self, partition: OwnedPartition, nbytes: int) -> Span:
        if nbytes <= partition.capacity_bytes:
            give_up_at = time.monotonic() + self._full_wait_s
            pause_s = _FIRST_WAIT_S
            while True:
                span = partition.allocate(nbytes)
                if span is not None:
                    return span
                if time.monotonic() + pause_s > give_up_at:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
        raise TensorStoreFull(
            f"no room for {nbytes} bytes in a partition of {partition.capacity_bytes} bytes, "
            f"of which {partition.used_bytes()} are in use"
        )


async def _write(partition: OwnedPartition, write: Callable[[], TensorRef], span: Span, nbytes: int) -> TensorRef:
    """Run a write to its end even if its caller is cancelled: a span under a writer's hands is never given on."""
    if nbytes < OFF_LOOP_BYTES:
        return write()

    def take_back(done: asyncio.Future[TensorRef]) -> None:
        if not done.cancelled() and done.exception() is None:
            partition.release(span.unit, done.result().generation)

    writing = asyncio.get_running_loop().run_in_executor(None, write)
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(take_back)
        raise
