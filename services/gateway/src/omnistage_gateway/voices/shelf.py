"""Records of tenants with their contents: the record in a key-value bucket, the content in an object bucket.

The record comes first and goes last, so whatever a crash leaves behind has a record that says where it lies; one that
stays incomplete is cleared away when its bucket is looked through, or its key is wanted again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Generic

import msgspec

from omnistage.transport import KeyValue, ObjectStore
from omnistage_gateway.voices.names import is_id, tenant_token
from omnistage_gateway.voices.records import R

PENDING_S = 120
"""A content that is not complete by then never will be: its writer is dead or has failed."""


class Shelf(Generic[R]):
    """Records of one kind.

    Args:
        kind: of the records.
        bucket, objects: where they and their contents lie.
        clock: unix time in seconds.
    """

    def __init__(
        self, kind: type[R], bucket: KeyValue, objects: ObjectStore, clock: Callable[[], float] = time.time
    ) -> None:
        self._kind = kind
        self._bucket = bucket
        self._objects = objects
        self._clock = clock

    async def add(self, tenant: str, record: R, content: bytes | None) -> R | None:
        """Keep a record and its content; None if the tenant has one of that id.

        Raises:
            BusError: the broker is away or full; nothing is kept.
        """
        key = _key(tenant, record.id)
        await self._find(key)
        place = "" if content is None else f"{tenant_token(tenant)}/{record.id}/{secrets.token_hex(8)}"
        pending = msgspec.structs.replace(record, object=place, complete=content is None)
        revision = await self._bucket.create(key, msgspec.msgpack.encode(pending))
        if revision is None:
            return None
        if content is None:
            return pending
        done = msgspec.structs.replace(pending, complete=True)
        try:
            await self._objects.put(place, content)
            if await self._bucket.update(key, msgspec.msgpack.encode(done), revision) is None:
                # It took so long that somebody has cleared it away.
                await self._objects.delete(place)
                return None
        except BaseException:
            await self._clear(key, pending)
            raise
        return done

    async def get(self, tenant: str, record_id: str) -> R | None:
        """A tenant's record; None if there is none. Any text may be asked for."""
        if not is_id(record_id):
            return None
        record = await self._find(_key(tenant, record_id))
        return record if record is not None and record.complete else None

    async def content(self, record: R) -> bytes | None:
        """The content of a record; None if it was removed meanwhile."""
        return await self._objects.get(record.object)

    async def all(self, tenant: str) -> list[R]:
        """A tenant's records, oldest first."""
        prefix = f"{tenant_token(tenant)}."
        found = [await self._find(key) for key in await self._bucket.keys() if key.startswith(prefix)]
        complete = [record for record in found if record is not None and record.complete]
        return sorted(complete, key=lambda record: (record.created_at, record.id))

    async def rename(self, tenant: str, record_id: str, name: str) -> R | None:
        """Call a record otherwise; None if there is none."""
        return await self._change(tenant, record_id, name=name)

    async def remove(self, tenant: str, record_id: str) -> bool:
        """Remove a record and its content; whether there was one. Out of use at once, then gone."""
        record = await self._change(tenant, record_id, complete=False)
        if record is None:
            return False
        await self._clear(_key(tenant, record_id), record)
        return True

    async def _change(self, tenant: str, record_id: str, **fields: object) -> R | None:
        """A record with other fields; None if there is none. Whoever else changes it comes before or after."""
        key = _key(tenant, record_id)
        while is_id(record_id) and (found := await self._bucket.get(key)) is not None:
            record = msgspec.msgpack.decode(found[0], type=self._kind)
            if not record.complete:
                return None
            changed = msgspec.structs.replace(record, **fields)
            if await self._bucket.update(key, msgspec.msgpack.encode(changed), found[1]) is not None:
                return changed
        return None

    async def _find(self, key: str) -> R | None:
        """The record of a key, complete or just being written; what was given up is cleared away."""
        found = await self._bucket.get(key)
        if found is None:
            return None
        record = msgspec.msgpack.decode(found[0], type=self._kind)
        if not record.complete and record.created_at < self._clock() - PENDING_S:
            await self._clear(key, record)
            return None
        return record

    async def _clear(self, key: str, record: R) -> None:
        if record.object:
            await self._objects.delete(record.object)
        await self._bucket.delete(key)


def _key(tenant: str, record_id: str) -> str:
    return f"{tenant_token(tenant)}.{record_id}"
