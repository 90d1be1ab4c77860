"""Object buckets, laid out as NATS tools expect them, written and read without a consumer."""

from __future__ import annotations

import base64
import hashlib
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from omnistage.errors import BusError
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.jetstream.records import read_all, read_last
from omnistage.transport.jetstream.streams import Streams
from omnistage.transport.options import BusOptions
from omnistage.transport.topology import StreamConfig, version_metadata

CHUNK_BYTES = 128 * 1024
_DIGEST = "SHA-256="
_READS = 3
"""Reads before an object counts as broken: a writer may replace it while it is being read."""


def objects_config(bucket: str, options: BusOptions) -> StreamConfig:
    """The stream behind an object bucket."""
    return {
        "name": f"OBJ_{bucket}",
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "storage": "file",
        "num_replicas": options.replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "discard": "new",
        "max_bytes": options.objects_max_bytes,
        "metadata": version_metadata(),
    }


class JetStreamObjects:
    """One bucket of objects: chunks on one subject, then a description on another, which makes it visible."""

    def __init__(self, connection: Connection, streams: Streams, bucket: str) -> None:
        self._connection = connection
        self._streams = streams
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._names = f"$O.{bucket}.M."

    async def put(self, name: str, data: bytes) -> None:
        before = await self._about(name)
        object_id = uuid.uuid4().hex
        try:
            for start in range(0, len(data), CHUNK_BYTES):
                await self._publish(self._chunks(object_id), data[start : start + CHUNK_BYTES], {})
            about = {
                "name": name,
                "options": {"max_chunk_size": CHUNK_BYTES},
                "bucket": self._bucket,
                "nuid": object_id,
                "size": len(data),
                "mtime": datetime.now(UTC).isoformat(),
                "chunks": -(-len(data) // CHUNK_BYTES),
                "digest": _digest(data),
            }
            await self._publish(self._description(name), msgspec.json.encode(about), {wire.ROLLUP: "sub"})
        except BaseException:
            await self._streams.purge(self._stream, self._chunks(object_id))
            raise
        if before is not None:
            await self._streams.purge(self._stream, self._chunks(before["nuid"]))

    async def get(self, name: str) -> bytes | None:
        for _ in range(_READS):
            about = await self._about(name)
            if about is None:
                return None
            if about["size"] == 0:
                return b""
            chunks = await read_all(self._connection, self._stream, self._chunks(about["nuid"]), 0)
            data = b"".join(chunk.body for chunk in chunks)
            if _digest(data) == about["digest"]:
                return data
        raise BusError(f"object {name!r} is incomplete", code="object_incomplete")

    async def delete(self, name: str) -> None:
        about = await self._about(name)
        if about is not None:
            await self._streams.purge(self._stream, self._description(name))
            await self._streams.purge(self._stream, self._chunks(about["nuid"]))

    async def names(self) -> list[str]:
        subjects = await self._streams.subjects_of(self._stream, self._names + ">")
        encoded = (subject.removeprefix(self._names) for subject in subjects)
        return sorted(base64.urlsafe_b64decode(name).decode() for name in encoded)

    async def _about(self, name: str) -> dict[str, Any] | None:
        record = await read_last(self._connection, self._stream, self._description(name))
        if record is None:
            return None
        about = msgspec.json.decode(record.body, type=dict[str, Any])
        return None if about.get("deleted") else about

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        reply = await self._connection.request(subject, body, headers)
        try:
            wire.decoded(reply.raw.data)
        except wire.ApiError as error:
            raise error.mapped() from error
        if reply.resent:
            # A chunk may be there twice now; the digest would not match.
            raise BusError("the connection broke while an object was written", code="object_incomplete")

    def _chunks(self, object_id: str) -> str:
        return f"$O.{self._bucket}.C.{object_id}"

    def _description(self, name: str) -> str:
        return self._names + base64.urlsafe_b64encode(name.encode()).decode()


def _digest(data: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
