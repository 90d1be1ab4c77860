"""Reading a stream by subject without a consumer: direct get, in batches."""

from __future__ import annotations

import msgspec

from omnistage.errors import BusUnavailable
from omnistage.transport.bus import Message
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection

_BATCH_BYTES = 4 << 20


async def read_batch(
    connection: Connection, stream: str, subject: str, after: int, limit: int
) -> tuple[list[Message], bool]:
    """Records of one subject with a sequence above `after`, in order, and whether there are more."""
    query = {"batch": limit, "next_by_subj": subject, "seq": after + 1, "max_bytes": _BATCH_BYTES}
    reply = await connection.batch(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(query))
    status = wire.status(reply.raw)
    if status == wire.NOT_FOUND:
        return [], False
    if status != wire.END_OF_BATCH:
        raise BusUnavailable(f"the broker ended a read with status {status}")
    records: list[Message] = []
    previous = after
    for raw in reply.collected:
        record = wire.stored(raw, previous)
        previous = record.sequence
        records.append(record)
    return records, wire.remaining(reply.raw) > 0


async def read_all(connection: Connection, stream: str, subject: str, after: int) -> list[Message]:
    """All records of one subject above `after` that exist now."""
    records: list[Message] = []
    more = True
    while more:
        batch, more = await read_batch(
            connection, stream, subject, records[-1].sequence if records else after, connection.options.read_batch
        )
        more = more and bool(batch)
        records.extend(batch)
    return records


async def read_last(connection: Connection, stream: str, subject: str) -> Message | None:
    """The last record of a subject, or None. Its `previous` is not known and 0."""
    reply = await connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")
    if wire.status(reply.raw) == wire.NOT_FOUND:
        return None
    return wire.stored(reply.raw, 0)
