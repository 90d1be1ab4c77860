"""The bus inside one process. It keeps no files, and forgets everything with its last bus."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Mapping
from dataclasses import replace

from omnistage.errors import BusUnavailable, ConfigError, Fenced, QueueFull
from omnistage.subjects import FEED, OUT, Subjects, parse
from omnistage.transport.bus import Handler, Message, ReconnectCallback
from omnistage.transport.checks import check_body, log_subject, work_subject
from omnistage.transport.memory.logs import Logs, MemoryLog
from omnistage.transport.memory.stores import MemoryKeyValue, MemoryObjects
from omnistage.transport.memory.work import MemoryQueue, Work
from omnistage.transport.options import BusOptions
from omnistage.transport.pump import Pump
from omnistage.transport.stats import BusStats
from omnistage.transport.topology import Topology


class MemoryBroker:
    """What all buses of a namespace share."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.work: dict[tuple[str, str], Work] = {}
        self.logs = {FEED: Logs(), OUT: Logs()}
        self.subscriptions: set[MemorySubscription] = set()
        self.buckets: dict[str, MemoryKeyValue] = {}
        self.objects: dict[str, MemoryObjects] = {}
        self.dead: list[Message] = []
        self.buses: weakref.WeakSet[MemoryBus] = weakref.WeakSet()
        self.sequence = itertools.count(1)

    def queue(self, stage: str, model: str) -> Work:
        """Items of a stage and model."""
        return self.work.setdefault((stage, model), Work())


_shared: dict[str, MemoryBroker] = {}


def shared_broker(namespace: str) -> MemoryBroker:
    """The broker of a namespace in this process; a new one if the old belonged to another event loop or was left."""
    broker = _shared.get(namespace)
    if broker is None or broker.loop is not asyncio.get_running_loop() or not broker.buses:
        broker = _shared[namespace] = MemoryBroker()
    return broker


class MemorySubscription:
    """Control messages on one subject, wildcards allowed."""

    def __init__(self, broker: MemoryBroker, pattern: str, handler: Handler, stats: BusStats) -> None:
        self._broker = broker
        self._pattern = pattern.split(".")
        self._pump = Pump(handler, stats)
        broker.subscriptions.add(self)

    def offer(self, message: Message) -> None:
        """Take the message if its subject matches."""
        if matches(self._pattern, message.subject.split(".")):
            self._pump.put(message)

    async def close(self) -> None:
        self._broker.subscriptions.discard(self)
        await self._pump.close()


def matches(pattern: list[str], subject: list[str]) -> bool:
    """Whether a subject matches a pattern: `*` is one token, a last `>` is one or more."""
    if pattern and pattern[-1] == ">":
        if len(subject) < len(pattern):
            return False
        pattern, subject = pattern[:-1], subject[: len(pattern) - 1]
    return len(pattern) == len(subject) and all(p in ("*", s) for p, s in zip(pattern, subject, strict=True))


class MemoryBus:
    """`omnistage.transport.Bus` on a MemoryBroker."""

    def __init__(self, broker: MemoryBroker, namespace: str, options: BusOptions | None = None) -> None:
        self.subjects = Subjects(namespace)
        self.stats = BusStats()
        self.broker = broker
        self._options = options or BusOptions()
        self._queues: set[MemoryQueue] = set()
        self._logs: set[MemoryLog] = set()
        self._subscriptions: set[MemorySubscription] = set()
        self._closed = False
        broker.buses.add(self)

    @property
    def connected(self) -> bool:
        return not self._closed

    async def ensure(self, topology: Topology) -> None:
        await self._turn()
        if topology.namespace != self.subjects.namespace:
            raise ConfigError(f"topology of {topology.namespace!r} on a bus of {self.subjects.namespace!r}")

    async def prune(self, topology: Topology) -> list[str]:
        """See `Bus.prune`; here no queue has a consumer to remove."""
        await self._turn()
        return []

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        """Never called: memory does not go away."""

    async def publish_work(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        parsed = work_subject(subject, self.subjects.namespace)
        check_body(body)
        await self._turn()
        work = self.broker.queue(parsed.stage, parsed.model)
        if subject in work.items:
            return
        queued = [item for other in self.broker.work.values() for item in other.items.values()]
        nbytes = sum(len(item.message.body) for item in queued) + len(body)
        if len(queued) >= self._options.work_max_msgs or nbytes > self._options.work_max_bytes:
            raise QueueFull("the work stream is full", retry_after_s=1.0)
        work.add(Message(subject, bytes(body), dict(headers), next(self.broker.sequence)))
        self.stats.published += 1

    async def work_queue(self, stage: str, model: str) -> MemoryQueue:
        await self._turn()
        work = self.broker.queue(stage, model)
        queue = MemoryQueue(work, self._options.ack_wait_s, self.stats, self._queues.discard)
        self._queues.add(queue)
        return queue

    async def give_back(self, token: str) -> None:
        await self._turn()
        if not token.startswith("memory."):
            raise ConfigError(f"{token!r} is no token of a claim")
        for work in self.broker.work.values():
            work.nak(token, 0.0)

    async def append(self, subject: str, body: bytes, headers: Mapping[str, str], *, expected: int) -> int:
        logs = self._logs_of(subject)
        check_body(body)
        await self._turn()
        try:
            sequence = logs.append(subject, body, headers, expected, self._options.log_max_bytes)
        except Fenced:
            self.stats.fenced += 1
            raise
        self.stats.published += 1
        return sequence

    async def read(self, subject: str, after: int = 0) -> list[Message]:
        logs = self._logs_of(subject)
        await self._turn()
        return logs.read(subject, after)

    async def follow(self, subject: str, after: int = 0, *, fresh: bool = False) -> MemoryLog:
        logs = self._logs_of(subject)
        await self._turn()
        log = MemoryLog(logs, subject, after, self._logs.discard)
        self._logs.add(log)
        return log

    async def purge_request(self, request_id: str) -> None:
        await self._turn()
        for work in self.broker.work.values():
            for item in [item for subject, item in work.items.items() if parse(subject).request_id == request_id]:
                work.remove(item)
        for logs in self.broker.logs.values():
            logs.purge(lambda subject: parse(subject).request_id == request_id)

    async def survey(self) -> list[Message]:
        await self._turn()
        items = [item.message for work in self.broker.work.values() for item in work.items.values()]
        lasts = [records[-1] for logs in self.broker.logs.values() for records in logs.records.values()]
        return items + [replace(last, previous=0) for last in lasts]

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        check_body(body)
        await self._turn()
        message = Message(subject, bytes(body), dict(headers or {}))
        for subscription in list(self.broker.subscriptions):
            subscription.offer(message)

    async def subscribe(self, subject: str, handler: Handler) -> MemorySubscription:
        await self._turn()
        subscription = MemorySubscription(self.broker, subject, handler, self.stats)
        self._subscriptions.add(subscription)
        return subscription

    async def key_value(self, bucket: str, *, ttl_s: float | None = None) -> MemoryKeyValue:
        await self._turn()
        store = self.broker.buckets.setdefault(self.subjects.bucket(bucket), MemoryKeyValue())
        store.ttl_s = store.ttl_s if ttl_s is None else ttl_s
        return store

    async def object_store(self, bucket: str) -> MemoryObjects:
        await self._turn()
        return self.broker.objects.setdefault(self.subjects.bucket(bucket), MemoryObjects())

    async def bury(self, stage: str, model: str, request_id: str, body: bytes, reason: str) -> None:
        check_body(body)
        await self._turn()
        headers = {"omni-reason": " ".join(reason.splitlines()), "omni-request-id": request_id}
        self.broker.dead.append(Message(self.subjects.dead(stage, model, request_id), bytes(body), headers))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for queue in list(self._queues):
            await queue.close()
        for log in list(self._logs):
            await log.close()
        for subscription in list(self._subscriptions):
            await subscription.close()
        self.broker.buses.discard(self)

    def _logs_of(self, subject: str) -> Logs:
        return self.broker.logs[log_subject(subject, self.subjects.namespace).kind]

    async def _turn(self) -> None:
        """What every method begins with: the bus must be open, and other tasks get their turn as with a real broker."""
        if self._closed:
            raise BusUnavailable("this bus is closed")
        await asyncio.sleep(0)
