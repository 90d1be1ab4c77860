"""Settles on the bus what dead processes left there: their claims, and the requests of gateways.

A dead stage's claims go back to their queues at once. Requests that a dead gateway waited for are cancelled
everywhere, since nobody can receive their answers; work without a gateway (jobs) goes on. What was under way from the
dead process when it died may still arrive at the broker, so everything is done a second time a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from omnistage.contracts import Cancel, encode
from omnistage.errors import BusError
from omnistage.observability import get_logger
from omnistage.pipelines import GATEWAY
from omnistage.runtime.claims import CLAIM_TTL_S, CLAIMS_BUCKET, hand_back
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.runtime.meta import Meta
from omnistage.runtime.orphans import CANCELLED
from omnistage.runtime.tasks import TaskBag
from omnistage.subjects import parse
from omnistage.transport import Bus, KeyValue, Message

_log = get_logger(__name__)

LATE_S = 1.5
"""A stage that looked for a tombstone just before it was written may still write for the request that long."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Reaper:
    """Works in tasks of its own: a broker that is away delays it, and nobody waits for it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks = TaskBag("reaper")
        self._closed = False

    def died(self, service: str, instance: str, running: Iterable[str] = ()) -> None:
        """An instance is gone, for whatever reason. Idempotent; returns at once.

        Args:
            running: the requests that it was last known to hold.
        """
        if self._closed:
            return
        if service == GATEWAY:
            requests = frozenset(running)
            self._tasks.spawn(self._twice(lambda: self._cancel_of(instance, requests)), instance)
        else:
            self._tasks.spawn(self._twice(lambda: hand_back(self._bus, instance)), instance)

    async def clear(self) -> int:
        """Settle what a whole system left, before anything of the next one runs; how many requests were ended.

        Raises:
            BusUnavailable: the broker does not answer.
        """
        claims = await self._bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S)
        for instance in {key.partition(".")[0] for key in await claims.keys()}:
            await hand_back(self._bus, instance)
        over = set(await (await self._tombstones()).keys())
        left = {
            _request_of(message)
            for message in await self._bus.survey()
            if _gateway_of(message) or _request_of(message) in over
        }
        await self._cancel(left)
        return len(left)

    async def close(self) -> None:
        """Leave undone what is not done: the next start settles it. Idempotent."""
        self._closed = True
        await self._tasks.close()

    async def _twice(self, settle: Callable[[], Awaitable[int]]) -> None:
        await _until_done(settle)
        await asyncio.sleep(LATE_S)
        await _until_done(settle)

    async def _cancel_of(self, gateway: str, known: frozenset[str]) -> int:
        await self._cancel(known)
        found = {_request_of(message) for message in await self._bus.survey() if _gateway_of(message) == gateway}
        await self._cancel(found)
        ended = len(found | known)
        if ended:
            _log.warning("requests of a dead gateway cancelled", gateway=gateway, requests=ended)
        return ended

    async def _cancel(self, requests: Iterable[str]) -> None:
        """Tombstones first, for all: who claims work after the word was sent still finds them."""
        ordered = sorted(requests)
        if not ordered:
            return
        tombstones = await self._tombstones()
        for request_id in ordered:
            await tombstones.create(request_id, CANCELLED)
            await self._bus.send(self._bus.subjects.ctl_request(request_id), encode(Cancel(request_id=request_id)))
        for request_id in ordered:
            await self._bus.purge_request(request_id)

    async def _tombstones(self) -> KeyValue:
        return await self._bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)


async def _until_done(settle: Callable[[], Awaitable[int]]) -> None:
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            await settle()
        except BusError as error:
            _log.warning("cannot settle what a dead process left yet", code=error.code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            return


def _request_of(message: Message) -> str:
    return parse(message.subject).request_id


def _gateway_of(message: Message) -> str:
    """Which gateway waits for this message's request; empty if none does, or if its headers cannot be read."""
    try:
        return Meta.from_headers(message.headers).gateway
    except ValueError:
        return ""
