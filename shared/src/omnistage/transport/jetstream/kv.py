"""Key-value buckets, laid out as NATS tools expect them; deleted keys leave nothing behind."""

from __future__ import annotations

from omnistage.errors import Fenced
from omnistage.transport.checks import check_body, check_key
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.jetstream.records import read_last
from omnistage.transport.jetstream.streams import Streams
from omnistage.transport.options import BusOptions
from omnistage.transport.topology import StreamConfig, nanoseconds, version_metadata

_DEDUPE_S = 120.0


def bucket_config(bucket: str, ttl_s: float | None, options: BusOptions) -> StreamConfig:
    """The stream behind a bucket."""
    config: StreamConfig = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "num_replicas": options.replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_bytes": options.bucket_max_bytes,
        "metadata": version_metadata(),
    }
    if ttl_s is not None:
        age = nanoseconds(ttl_s)
        config |= {"max_age": age, "duplicate_window": min(age, nanoseconds(_DEDUPE_S))}
    return config


class JetStreamKeyValue:
    """One bucket."""

    def __init__(self, connection: Connection, streams: Streams, bucket: str) -> None:
        self._connection = connection
        self._streams = streams
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def put(self, key: str, value: bytes) -> int:
        return await self._store(key, value, {})

    async def create(self, key: str, value: bytes) -> int | None:
        return await self.update(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        try:
            return await self._store(key, value, {wire.EXPECTED_LAST: str(revision)})
        except Fenced:
            return None

    async def get(self, key: str) -> tuple[bytes, int] | None:
        check_key(key)
        record = await read_last(self._connection, self._stream, self._prefix + key)
        if record is None or "KV-Operation" in record.headers:
            return None
        return record.body, record.sequence

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._streams.purge(self._stream, self._prefix + key)

    async def keys(self) -> list[str]:
        subjects = await self._streams.subjects_of(self._stream, self._prefix + ">")
        return sorted(subject.removeprefix(self._prefix) for subject in subjects)

    async def _store(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        check_key(key)
        check_body(value)
        reply = await self._connection.request(self._prefix + key, value, headers)
        try:
            return int(wire.decoded(reply.raw.data)["seq"])
        except wire.ApiError as error:
            if reply.resent and error.number in wire.WRONG_LAST_SEQUENCE:
                last = await read_last(self._connection, self._stream, self._prefix + key)
                if last is not None and last.body == value and last.sequence > int(headers[wire.EXPECTED_LAST]):
                    return last.sequence
            raise error.mapped() from error
