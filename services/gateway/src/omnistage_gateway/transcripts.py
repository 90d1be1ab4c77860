"""What the assistant's audio said, by its id: clients refer to it in later turns instead of sending it back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from omnistage.transport import KeyValue

_AUDIO_ID = re.compile(r"audio_[a-z0-9_-]{1,100}")


class Transcripts(Protocol):
    async def get(self, audio_id: str) -> str | None:
        """The text, or None if the id is unknown or has expired."""
        ...

    async def put(self, audio_id: str, text: str, expires_at: float) -> None:
        """Keep a text until that unix time in seconds."""
        ...


class MemoryTranscripts:
    """For one gateway, and for tests.

    Args:
        capacity: how many are kept; the oldest go first.
        clock: unix time in seconds.
    """

    def __init__(self, capacity: int = 10_000, clock: Callable[[], float] = time.time) -> None:
        self._capacity = capacity
        self._clock = clock
        self._kept: dict[str, tuple[str, float]] = {}

    async def get(self, audio_id: str) -> str | None:
        text, expires_at = self._kept.get(audio_id, ("", 0.0))
        return text if expires_at > self._clock() else None

    async def put(self, audio_id: str, text: str, expires_at: float) -> None:
        while len(self._kept) >= self._capacity:
            del self._kept[next(iter(self._kept))]
        self._kept[audio_id] = (text, expires_at)


class _Entry(msgspec.Struct, frozen=True):
    text: str
    expires_at: float


class SharedTranscripts:
    """In a bucket of the bus, so that any gateway can answer.

    Args:
        bucket: its entries should live at least as long as transcripts do.
        clock: unix time in seconds.
    """

    def __init__(self, bucket: KeyValue, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock

    async def get(self, audio_id: str) -> str | None:
        if not is_audio_id(audio_id):
            return None
        found = await self._bucket.get(audio_id)
        if found is None:
            return None
        entry = msgspec.msgpack.decode(found[0], type=_Entry)
        return entry.text if entry.expires_at > self._clock() else None

    async def put(self, audio_id: str, text: str, expires_at: float) -> None:
        await self._bucket.put(audio_id, msgspec.msgpack.encode(_Entry(text, expires_at)))


def is_audio_id(value: str) -> bool:
    """Whether it looks like an id that we gave; anything else could not be a key of the bucket."""
    return _AUDIO_ID.fullmatch(value) is not None
