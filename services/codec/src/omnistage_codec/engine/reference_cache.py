"""What was encoded lately, by what it was encoded from. No I/O, no clock."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models.base import Reference


@dataclass(frozen=True)
class ReferenceKey:
    """What a result depends on, and whose it is: one tenant never sees what another one sent.

    Attributes:
        tenant: of the key that sent the recording.
        fingerprint: of the weights.
        content: SHA-256 over type, rate and samples.
    """

    tenant: str
    fingerprint: str
    content: bytes


def content_of(samples: NDArray[np.int16] | NDArray[np.float32], sample_rate_hz: int) -> bytes:
    """The content part of a key."""
    digest = hashlib.sha256(f"{samples.dtype} {sample_rate_hz} {len(samples)}\n".encode())
    digest.update(np.ascontiguousarray(samples).data)
    return digest.digest()


def copy_of(reference: Reference) -> Reference:
    """The same in memory of its own."""
    embedding = None if reference.embedding is None else reference.embedding.copy()
    return Reference(codes=reference.codes.copy(), embedding=embedding)


class ReferenceCache:
    """Keeps what was used last, up to a number of bytes; gives and takes copies.

    Attributes:
        nbytes: of all arrays in it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ReferenceKey, Reference] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ReferenceKey) -> Reference | None:
        """A copy of what is known."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return copy_of(found)

    def put(self, key: ReferenceKey, reference: Reference) -> None:
        """Keep a copy, at the cost of what was not used for longest; what is too large alone is not kept."""
        size = _nbytes(reference)
        if size > self._max_bytes:
            return
        earlier = self._entries.pop(key, None)
        self.nbytes += size - (0 if earlier is None else _nbytes(earlier))
        self._entries[key] = copy_of(reference)
        while self.nbytes > self._max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.nbytes -= _nbytes(dropped)


def _nbytes(reference: Reference) -> int:
    return reference.codes.nbytes + (0 if reference.embedding is None else reference.embedding.nbytes)
