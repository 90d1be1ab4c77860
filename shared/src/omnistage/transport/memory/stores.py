"""Key-value and object buckets in memory."""

from __future__ import annotations

import asyncio
import itertools

from omnistage.transport.checks import check_body, check_key


class MemoryKeyValue:
    """One bucket, shared by all buses of the broker."""

    def __init__(self) -> None:
        self.ttl_s: float | None = None
        self._entries: dict[str, tuple[bytes, int, float]] = {}
        self._revisions = itertools.count(1)

    async def put(self, key: str, value: bytes) -> int:
        check_key(key)
        check_body(value)
        await asyncio.sleep(0)
        return self._store(key, value)

    async def create(self, key: str, value: bytes) -> int | None:
        return await self.update(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        check_key(key)
        check_body(value)
        await asyncio.sleep(0)
        entry = self._entry(key)
        return self._store(key, value) if (entry[1] if entry else 0) == revision else None

    async def get(self, key: str) -> tuple[bytes, int] | None:
        check_key(key)
        await asyncio.sleep(0)
        return self._entry(key)

    async def delete(self, key: str) -> None:
        check_key(key)
        await asyncio.sleep(0)
        self._entries.pop(key, None)

    async def keys(self) -> list[str]:
        await asyncio.sleep(0)
        return sorted(key for key in list(self._entries) if self._entry(key))

    def _store(self, key: str, value: bytes) -> int:
        revision = next(self._revisions)
        self._entries[key] = (bytes(value), revision, asyncio.get_running_loop().time())
        return revision

    def _entry(self, key: str) -> tuple[bytes, int] | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, revision, written = entry
        if self.ttl_s is not None and asyncio.get_running_loop().time() - written > self.ttl_s:
            del self._entries[key]
            return None
        return value, revision


class MemoryObjects:
    """One bucket of objects, shared by all buses of the broker."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.sleep(0)
        self._objects[name] = bytes(data)

    async def get(self, name: str) -> bytes | None:
        await asyncio.sleep(0)
        return self._objects.get(name)

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        self._objects.pop(name, None)

    async def names(self) -> list[str]:
        await asyncio.sleep(0)
        return sorted(self._objects)
