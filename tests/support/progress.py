"""How far a stage has come with a request: what its log says."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from omnistage.contracts import AudioDelta, End, Failed, FrameChunk, Opened, TextDelta, TextDone, decode_record
from omnistage.transport import Bus

LOGS = {"thinker": "thinker-gateway", "talker": "talker-codec", "codec": "codec-gateway"}
"""The edge by which a stage is judged."""

DATA = (TextDelta, TextDone, FrameChunk, AudioDelta)


@dataclass(frozen=True)
class Progress:
    """What a log holds.

    Attributes:
        last: sequence of its last record; 0 if there is none.
        holder: the instance that opened it last.
        chunks: data records.
        over: whether it has an end.
    """

    last: int = 0
    holder: str = ""
    chunks: int = 0
    over: bool = False


def log_subject(bus: Bus, service: str, engine: str, request_id: str) -> str:
    edge = LOGS[service]
    build = bus.subjects.out if edge.endswith("-gateway") else bus.subjects.feed
    return build(service, engine, request_id, edge)


async def progress(bus: Bus, subject: str) -> Progress:
    last, holder, chunks, over = 0, "", 0, False
    for message in await bus.read(subject):
        record = decode_record(message.body)
        last = message.sequence
        holder = record.instance if isinstance(record, Opened) else holder
        chunks += isinstance(record, DATA)
        over = over or isinstance(record, End | Failed)
    return Progress(last, holder, chunks, over)


@dataclass(frozen=True)
class TakeOver:
    """When another instance went on: monotonic seconds of its claim and of its first record."""

    holder: str
    opened: float
    went_on: float


async def take_over(bus: Bus, subject: str, after: int, holder: str, timeout_s: float) -> TakeOver | None:
    """Wait until an instance other than `holder` has written to a log; None if none did in time."""
    opened: tuple[str, float] | None = None
    log = await bus.follow(subject, after)
    try:
        async with asyncio.timeout(timeout_s):
            async for message in log:
                record = decode_record(message.body)
                if isinstance(record, Opened):
                    opened = (record.instance, time.monotonic()) if record.instance != holder else None
                elif opened is not None and isinstance(record, (*DATA, End)):
                    return TakeOver(*opened, time.monotonic())
    except TimeoutError:
        return None
    finally:
        await log.close()
    return None
