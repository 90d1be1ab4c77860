"""Tensors within one process: for tests, and for a system that runs as a single process."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from omnistage.contracts import TensorRef
from omnistage.errors import TensorError, TensorGone, TensorStoreFull
from omnistage.tensors.store import Array, checksum, to_bytes, verified


@dataclass(frozen=True, slots=True)
class _Block:
    data: bytearray
    generation: int
    request_id: str
    lease: float


@dataclass
class MemorySpace:
    """What the stores of one process share, as processes of one host share an arena."""

    blocks: dict[str, _Block] = field(default_factory=dict)
    generations: itertools.count[int] = field(default_factory=lambda: itertools.count(2, 2))
    writers: itertools.count[int] = field(default_factory=itertools.count)

    def corrupt(self, ref: TensorRef) -> None:
        """Flip the first byte of a block, for tests of the checksum."""
        self.blocks[ref.id].data[0] ^= 0xFF


class MemoryTensorStore:
    """The tensor protocol over a dictionary. Not safe across threads: use it on the event loop.

    Args:
        space: shared by the stores that shall see each other's blocks.
        capacity_bytes: limit on this store's own blocks; 0 means none.
    """

    def __init__(self, space: MemorySpace | None = None, *, capacity_bytes: int = 0) -> None:
        self._space = space if space is not None else MemorySpace()
        self._writer = next(self._space.writers)
        self._slots = itertools.count()
        self._own: set[str] = set()
        self._capacity_bytes = capacity_bytes
        self._is_closed = False

    async def put(self, array: Array, *, request_id: str, lease_s: float) -> TensorRef:
        """See `TensorStore.put`."""
        self._check_open()
        data, dtype, shape = to_bytes(array)
        if self._capacity_bytes and self._used_bytes() + data.nbytes > self._capacity_bytes:
            await self.sweep()
            if self._used_bytes() + data.nbytes > self._capacity_bytes:
                raise TensorStoreFull(f"no room for {data.nbytes} bytes in a store of {self._capacity_bytes}")
        block = _Block(bytearray(data), next(self._space.generations), request_id, time.time() + lease_s)
        block_id = f"{self._writer}-{next(self._slots)}"
        self._space.blocks[block_id] = block
        self._own.add(block_id)
        return TensorRef(
            place="memory",
            id=block_id,
            dtype=dtype,
            shape=shape,
            nbytes=data.nbytes,
            generation=block.generation,
            checksum=checksum(data),
            lease=block.lease,
        )

    async def get(self, ref: TensorRef) -> Array:
        """See `TensorStore.get`."""
        self._check_open()
        block = self._space.blocks.get(ref.id)
        if block is None or block.generation != ref.generation or block.lease <= time.time():
            raise TensorGone(f"block {ref.id} is gone")
        return verified(bytes(block.data), ref).copy()

    async def borrow(self, ref: TensorRef) -> Array:
        """See `TensorStore.borrow`; here it is a copy."""
        return await self.get(ref)

    async def release(self, ref: TensorRef) -> None:
        """See `TensorStore.release`."""
        self._check_open()
        block = self._space.blocks.get(ref.id)
        if block is not None and block.generation == ref.generation:
            del self._space.blocks[ref.id]

    async def forget(self, request_id: str) -> int:
        """See `TensorStore.forget`."""
        self._check_open()
        doomed = [i for i, block in self._own_blocks().items() if block.request_id == request_id]
        for block_id in doomed:
            del self._space.blocks[block_id]
        return len(doomed)

    async def sweep(self) -> int:
        """See `TensorStore.sweep`."""
        self._check_open()
        now = time.time()
        doomed = [i for i, block in self._space.blocks.items() if block.lease <= now]
        for block_id in doomed:
            del self._space.blocks[block_id]
        return len(doomed)

    def usage(self) -> tuple[int, int]:
        """See `TensorStore.usage`."""
        return self._used_bytes(), self._capacity_bytes

    async def close(self) -> None:
        """See `TensorStore.close`."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise TensorError("the store is closed")

    def _own_blocks(self) -> dict[str, _Block]:
        held = {i: block for i in self._own if (block := self._space.blocks.get(i)) is not None}
        self._own = set(held)
        return held

    def _used_bytes(self) -> int:
        return sum(len(block.data) for block in self._own_blocks().values())
