"""The tensor plane as the rest of the system sees it: bytes by reference.

Implementations (`memory`, `shm`, `redis_store`) pass one conformance suite, `omnistage.testing.tensor_conformance`;
`plane` chooses between them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnistage.contracts import TensorRef

Array = NDArray[Any]


class TensorStore(Protocol):
    """Blocks of bytes that a producer publishes and consumers on other processes or hosts read.

    Ownership: a published block belongs to its request. It lives until it is released, the request is forgotten or
    its lease ends, whatever becomes of the process that wrote it.
    """

    async def put(self, array: Array, *, request_id: str, lease_s: float) -> TensorRef:
        """Publish a C-contiguous copy of the array.

        Raises:
            TensorStoreFull: no room within the store's wait.
        """
        ...

    async def get(self, ref: TensorRef) -> Array:
        """A private copy of the block, verified.

        Raises:
            TensorGone: released, reclaimed or overwritten since.
            TensorCorrupt: checksum mismatch.
        """
        ...

    async def release(self, ref: TensorRef) -> None:
        """The block is no longer needed by anyone. Idempotent; callable by any process."""
        ...

    async def forget(self, request_id: str) -> int:
        """Release all blocks that this process published for a request; returns how many were still held."""
        ...

    async def sweep(self) -> int:
        """Reclaim what nobody can need any more (leases over, owners dead); returns how many blocks."""
        ...

    def usage(self) -> tuple[int, int]:
        """Bytes in use by this process's blocks, and its capacity (0 if unlimited)."""
        ...

    async def close(self) -> None:
        """Let go of the store; blocks that were published stay readable to their lease. Idempotent."""
        ...


def to_bytes(array: Array) -> tuple[memoryview, str, tuple[int, ...]]:
    """Contiguous little-endian bytes, dtype name and shape of an array."""
    contiguous = np.ascontiguousarray(array)
    return memoryview(contiguous).cast("B"), contiguous.dtype.name, contiguous.shape


def from_bytes(data: bytes | bytearray | memoryview, dtype: str, shape: tuple[int, ...]) -> Array:
    """An array over the given bytes (no copy)."""
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
