"""The tensor plane as a service uses it: small arrays inside the message, larger ones where their reader finds them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from omnistage.contracts import Inline, Payload, TensorRef
from omnistage.errors import ConfigError, TensorCorrupt, TensorError, TensorGone, TensorStoreFull
from omnistage.tensors import arena
from omnistage.tensors.memory import MemorySpace, MemoryTensorStore
from omnistage.tensors.ownership import default_folder
from omnistage.tensors.redis_store import RedisTensorStore
from omnistage.tensors.shm import ShmTensorStore
from omnistage.tensors.store import Array, TensorStore, from_bytes, to_bytes, wire_dtype

T = TypeVar("T")

INLINE_LIMIT_BYTES = 16 * 1024
"""Arrays up to this size travel inside the message by default."""

SHM_BYTES = 64 * 1024 * 1024
"""Room for blocks in a process's arena partition by default."""


@dataclass
class TensorStats:
    """What a plane has done since it was opened; keys of the counters are places ("inline", "shm", "redis", "memory").

    Attributes:
        puts, put_bytes: arrays packed, and their bytes.
        gets, get_bytes: arrays unpacked, and their bytes.
        spills: arrays that went to Redis because the arena was full.
        refused: arrays that found no room anywhere.
        gone, corrupt: reads that failed so.
    """

    puts: Counter[str] = field(default_factory=Counter)
    put_bytes: Counter[str] = field(default_factory=Counter)
    gets: Counter[str] = field(default_factory=Counter)
    get_bytes: Counter[str] = field(default_factory=Counter)
    spills: int = 0
    refused: int = 0
    gone: int = 0
    corrupt: int = 0


class TensorPlane:
    """Chooses a place for each array by its size and by where its reader is, and counts.

    Args:
        near: store for readers on this host, if there is one.
        far: store for readers on other hosts, and for what does not fit into `near`.
        inline_limit_bytes: arrays up to this size travel inside the message.
        locality: equal for two planes exactly if each reaches the other's `near` blocks; "" if nobody else does.

    Raises:
        ConfigError: neither store is given.
    """

    def __init__(
        self,
        *,
        near: TensorStore | None,
        far: TensorStore | None = None,
        inline_limit_bytes: int = INLINE_LIMIT_BYTES,
        locality: str = "",
    ) -> None:
        if near is None and far is None:
            raise ConfigError("the tensor plane needs an arena, a tensor server, or both")
        self._near = near
        self._far = far
        self._inline_limit_bytes = inline_limit_bytes
        self.locality = locality
        self.stats = TensorStats()
        self._published: dict[str, float] = {}

    async def pack(self, array: Array, *, request_id: str, lease_s: float, same_host: bool = True) -> Payload:
        """Make an array ready to travel in a message.

        Args:
            array: plain numbers of any shape.
            request_id: the request that the block belongs to.
            lease_s: seconds after which the block may be reclaimed, whatever happened.
            same_host: whether the reader shares this plane's locality.

        Raises:
            TensorStoreFull: no room anywhere in time.
            TensorUnavailable: the tensor server does not answer.
            TensorError: no store reaches the reader.
            TypeError: elements that are no plain numbers.
        """
        nbytes = array.size * wire_dtype(array).itemsize
        if nbytes <= self._inline_limit_bytes:
            data, dtype, shape = to_bytes(array)
            self._count_put("inline", nbytes)
            return Inline(data=bytes(data), dtype=dtype, shape=shape)
        # Noted before it is written: a write whose answer is lost may have happened.
        self._published[request_id] = max(time.time() + lease_s, self._published.get(request_id, 0.0))
        try:
            ref = await self._put(array, request_id, lease_s, same_host=same_host)
        except TensorStoreFull:
            self.stats.refused += 1
            raise
        self._count_put(ref.place, nbytes)
        return ref

    async def unpack(self, payload: Payload, *, borrow: bool = False) -> Array:
        """The array in a message.

        Args:
            payload: what `pack` made.
            borrow: see `TensorStore.borrow`; else the array is a private copy.

        Raises:
            TensorGone: released, reclaimed or overwritten, or out of this process's reach.
            TensorCorrupt: the bytes are not those that were packed.
            TensorUnavailable: the tensor server does not answer.
        """
        try:
            if isinstance(payload, Inline):
                place, array = "inline", from_bytes(payload.data, payload.dtype, payload.shape).copy()
            else:
                store = self._store_of(payload)
                place, array = payload.place, await (store.borrow if borrow else store.get)(payload)
        except TensorGone:
            self.stats.gone += 1
            raise
        except TensorCorrupt:
            self.stats.corrupt += 1
            raise
        self.stats.gets[place] += 1
        self.stats.get_bytes[place] += array.nbytes
        return array

    async def release(self, payload: Payload) -> None:
        """The block of this payload is no longer needed by anyone. Idempotent; of no effect for inline payloads."""
        if isinstance(payload, TensorRef):
            with suppress(TensorGone):
                await self._store_of(payload).release(payload)

    async def forget(self, request_id: str) -> int:
        """Release what this process published for a request that is over; returns how many blocks were still held."""
        held = sum(await self._each(lambda store: store.forget(request_id)))
        self._published.pop(request_id, None)
        return held

    def published(self) -> tuple[str, ...]:
        """Requests that this process published blocks for, and has not forgotten, while their leases last."""
        now = time.time()
        self._published = {request_id: lease for request_id, lease in self._published.items() if lease > now}
        return tuple(self._published)

    async def sweep(self) -> int:
        """Reclaim what nobody can need any more, here and after dead processes; returns how many blocks."""
        return sum(await self._each(lambda store: store.sweep()))

    def usage(self) -> Mapping[str, tuple[int, int]]:
        """Bytes in use by this process's blocks and capacity (0 if unlimited), by place."""
        return {place: store.usage() for place, store in self._stores().items()}

    async def close(self) -> None:
        """Let go of all stores. Idempotent."""
        await self._each(lambda store: store.close())

    async def _put(self, array: Array, request_id: str, lease_s: float, *, same_host: bool) -> TensorRef:
        if self._near is not None and same_host:
            try:
                return await self._near.put(array, request_id=request_id, lease_s=lease_s)
            except TensorStoreFull:
                if self._far is None:
                    raise
                self.stats.spills += 1
        if self._far is None:
            raise TensorError("a reader on another host needs a tensor server, and none is configured")
        return await self._far.put(array, request_id=request_id, lease_s=lease_s)

    def _stores(self) -> dict[str, TensorStore]:
        near = "memory" if isinstance(self._near, MemoryTensorStore) else "shm"
        return {place: s for place, s in ((near, self._near), ("redis", self._far)) if s is not None}

    def _store_of(self, ref: TensorRef) -> TensorStore:
        store = self._stores().get(ref.place)
        if store is None:
            raise TensorGone(f"this process has no {ref.place} store")
        return store

    def _count_put(self, place: str, nbytes: int) -> None:
        self.stats.puts[place] += 1
        self.stats.put_bytes[place] += nbytes

    async def _each(self, call: Callable[[TensorStore], Awaitable[T]]) -> list[T]:
        """The call's result of every store; an error of one is raised only after the others have been called."""
        results: list[T] = []
        errors: list[TensorError] = []
        for store in self._stores().values():
            try:
                results.append(await call(store))
            except TensorError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return results


async def open_plane(
    *,
    namespace: str,
    instance: str,
    shm_folder: Path | None = None,
    shm_bytes: int = SHM_BYTES,
    redis_url: str | None = None,
    inline_limit_bytes: int = INLINE_LIMIT_BYTES,
    full_wait_s: float = 0.05,
) -> TensorPlane:
    """Open the stores that are configured.

    Args:
        namespace: of the deployment; planes of different namespaces never meet.
        instance: name of this process, for people who look into the arena's folder.
        shm_folder: the arena; None is `ownership.default_folder`.
        shm_bytes: room for this process's blocks in the arena; 0 means no arena.
        redis_url: the tensor server; None means none.
        inline_limit_bytes: arrays up to this size travel inside the message.
        full_wait_s: how long a full arena is waited for before blocks go to the tensor server.

    Raises:
        ConfigError: the arena has no room, or the configuration is wrong.
        TensorError: the tensor server does not answer.
    """
    near: ShmTensorStore | None = None
    locality = ""
    if shm_bytes > 0:
        folder = shm_folder if shm_folder is not None else default_folder(namespace)
        near = await ShmTensorStore.open(
            folder, namespace=namespace, instance=instance, capacity_bytes=shm_bytes, full_wait_s=full_wait_s
        )
        locality = await asyncio.to_thread(folder_locality, folder)
    try:
        far = None if redis_url is None else await RedisTensorStore.open(redis_url, namespace=namespace)
        return TensorPlane(near=near, far=far, inline_limit_bytes=inline_limit_bytes, locality=locality)
    except BaseException:
        if near is not None:
            await near.close()
        raise


def memory_plane(
    space: MemorySpace | None = None, *, capacity_bytes: int = 0, inline_limit_bytes: int = INLINE_LIMIT_BYTES
) -> TensorPlane:
    """A plane within this process; planes over the same space read each other's blocks."""
    store = MemoryTensorStore(space, capacity_bytes=capacity_bytes)
    return TensorPlane(near=store, inline_limit_bytes=inline_limit_bytes)


def folder_locality(folder: Path) -> str:
    """A name for an arena that is the same in all processes and containers that share it, and nowhere else.

    Processes that lay partitions out differently, as two versions may, do not share it.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = boot.read_text(encoding="ascii").strip() if boot.exists() else f"{uuid.getnode():x}"
    status = folder.stat()
    return f"{host}:{status.st_dev:x}:{status.st_ino:x}:{arena.MAGIC:x}"
