"""The tensor plane as the rest of the system sees it: bytes by reference.

Implementations (`memory`, `shm`, `redis_store`) pass one conformance suite, `omnistage.testing.tensor_conformance`;
`plane` chooses between them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from omnistage.contracts import TensorRef
from omnistage.errors import TensorCorrupt

Array = NDArray[Any]
ByteArray = NDArray[np.uint8]
T = TypeVar("T")

OFF_LOOP_BYTES = 1024 * 1024
"""Copies from this size on leave the event loop: they take longer than handing them to a thread."""


_NAMES = frozenset(kind.name for kind in map(np.dtype, np.typecodes["All"]) if kind.kind in "biufc")
"""Types as they are named on the wire. Anything else is kept from numpy, which evaluates parts of such a name."""


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
            TensorGone: released, reclaimed or overwritten since, or its lease is over.
            TensorCorrupt: checksum mismatch.
        """
        ...

    async def borrow(self, ref: TensorRef) -> Array:
        """The block where it lies, verified, read-only: no copy where the store can do without.

        For the one reader that will release the block: the array is good until then. Errors as `get`.
        """
        ...

    async def release(self, ref: TensorRef) -> None:
        """The block is no longer needed by anyone. Idempotent; callable by any process."""
        ...

    async def forget(self, request_id: str) -> int:
        """Release all blocks that this process published for a request; returns how many were still held.

        Blocks of other live processes stay: a fenced holder that cleans up must not take its successor's blocks.
        Blocks of dead processes are released too where the store can tell (shm).
        """
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


def wire_dtype(array: Array) -> np.dtype[Any]:
    """The little-endian element type that an array has in a block.

    Raises:
        TypeError: elements that are no plain numbers (objects, strings, records, dates).
    """
    if array.dtype.kind not in "biufc":
        raise TypeError(f"arrays of {array.dtype} cannot be sent")
    return array.dtype.newbyteorder("<")


def to_bytes(array: Array) -> tuple[memoryview, str, tuple[int, ...]]:
    """Contiguous little-endian bytes, dtype name and shape of an array.

    Raises:
        TypeError: elements that are no plain numbers.
    """
    contiguous = np.asarray(array, dtype=wire_dtype(array), order="C")
    return contiguous.reshape(-1).view(np.uint8).data, contiguous.dtype.name, contiguous.shape


def from_bytes(data: bytes | bytearray | memoryview | ByteArray, dtype: str, shape: tuple[int, ...]) -> Array:
    """An array over the given bytes (no copy).

    Raises:
        TensorCorrupt: dtype, shape and number of bytes do not fit together.
    """
    try:
        if dtype not in _NAMES:
            raise TensorCorrupt(f"{dtype[:50]!r} is no type of numbers")
        element = np.dtype(dtype).newbyteorder("<")
        if len(data) != element.itemsize * math.prod(shape):
            raise TensorCorrupt(f"{len(data)} bytes are no {dtype} array of shape {shape}")
        if len(data) == 0:
            return np.empty(shape, element)
        return np.frombuffer(data, dtype=element).reshape(shape)
    except (TypeError, ValueError) as error:
        raise TensorCorrupt(f"{len(data)} bytes are no {dtype} array of shape {shape}") from error


def checksum(data: bytes | memoryview | ByteArray) -> int:
    """xxh3_64 of the bytes, as `TensorRef.checksum` carries it."""
    return xxhash.xxh3_64_intdigest(data.data if isinstance(data, np.ndarray) else data)


def verified(data: bytes | ByteArray, ref: TensorRef) -> Array:
    """The array that a reference describes, over bytes that were read for it.

    Raises:
        TensorCorrupt: the bytes are not those that were published.
    """
    if len(data) != ref.nbytes or checksum(data) != ref.checksum:
        raise TensorCorrupt(f"block {ref.id}@{ref.offset} does not match its checksum")
    return from_bytes(data, ref.dtype, ref.shape)


async def run_copy(work: Callable[[], T], nbytes: int) -> T:
    """Run work that touches so many bytes: on the event loop if it is short, else in a thread."""
    return await asyncio.to_thread(work) if nbytes >= OFF_LOOP_BYTES else work()
