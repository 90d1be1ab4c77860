"""The bus over one NATS connection; queues, logs, buckets and streams each have a module of their own."""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as CoreSubscription

from omnistage.errors import ConfigError, Fenced
from omnistage.observability import get_logger
from omnistage.subjects import FEED, OUT, WORK, Subjects
from omnistage.transport.bus import Handler, Message, ReconnectCallback
from omnistage.transport.checks import check_body, log_subject, work_subject
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.jetstream.kv import JetStreamKeyValue, bucket_config
from omnistage.transport.jetstream.log import JetStreamLog
from omnistage.transport.jetstream.objects import JetStreamObjects, objects_config
from omnistage.transport.jetstream.queue import NAK, JetStreamQueue
from omnistage.transport.jetstream.records import read_all, read_last
from omnistage.transport.jetstream.streams import Streams
from omnistage.transport.options import BusOptions
from omnistage.transport.pump import deliver
from omnistage.transport.stats import BusStats
from omnistage.transport.topology import Topology, consumer

_log = get_logger(__name__)

_PER_SUBJECT = "per subject"
"""In the broker's refusal when an item of that subject is queued already; the error number is a full stream's."""
_REASON_LENGTH = 500


class JetStreamSubscription:
    """Control messages on one subject."""

    def __init__(self, connection: Connection, handler: Handler) -> None:
        self._connection = connection
        self._handler = handler
        self._core: CoreSubscription | None = None

    async def open(self, subject: str) -> None:
        await self._connection.ready()
        self._core = await self._connection.subscribe(subject, self._on_message)
        await self._connection.barrier()

    async def close(self) -> None:
        if self._core is not None:
            core, self._core = self._core, None
            await self._connection.unsubscribe(core)

    async def _on_message(self, raw: Msg) -> None:
        message = Message(raw.subject, raw.data, wire.plain_headers(raw.headers))
        await deliver(self._handler, message, self._connection.stats)


class JetStreamBus:
    """`omnistage.transport.Bus` over NATS JetStream."""

    def __init__(self, namespace: str, options: BusOptions | None = None) -> None:
        self.subjects = Subjects(namespace)
        self.stats = BusStats()
        self._options = options or BusOptions()
        self._connection = Connection(self._options, self.stats)
        self._streams = Streams(self._connection)
        self._logs: set[JetStreamLog] = set()
        self._queues: set[JetStreamQueue] = set()
        self._closed = False

    async def open(self, url: str, *, name: str, user: str | None, password: str | None) -> None:
        """Connect and create the namespace's streams. Raises BusUnavailable or ConfigError."""
        await self._connection.open(url, name=name, user=user, password=password)
        self._connection.when_stream_is_missing(self._streams.reassert)
        self._connection.when_thrown_out(self._give_up)
        self._connection.after_reconnect(self._streams.reassert)
        self._connection.after_reconnect(self._resume)
        try:
            await self.ensure(Topology.of(self.subjects.namespace, ()))
        except BaseException:
            await self.close()
            raise

    @property
    def connected(self) -> bool:
        return self._connection.connected

    async def ensure(self, topology: Topology) -> None:
        if topology.namespace != self.subjects.namespace:
            raise ConfigError(f"topology of {topology.namespace!r} on a bus of {self.subjects.namespace!r}")
        for stream in topology.streams(self._options):
            await self._streams.need_stream(stream)
        for durable in topology.consumers(self._options):
            await self._streams.need_consumer(durable)

    async def prune(self, topology: Topology) -> list[str]:
        kept = {durable.name for durable in topology.consumers(self._options)}
        return await self._streams.remove_consumers(self.subjects.stream(WORK), kept)

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        self._connection.after_reconnect(callback)

    async def publish_work(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        work_subject(subject, self.subjects.namespace)
        check_body(body)
        reply = await self._connection.request(subject, body, headers)
        try:
            wire.decoded(reply.raw.data)
        except wire.ApiError as error:
            if error.number == wire.STORE_FAILED and _PER_SUBJECT in error.description:
                return
            raise error.mapped() from error
        self.stats.published += 1

    async def work_queue(self, stage: str, model: str) -> JetStreamQueue:
        durable = consumer(self.subjects, stage, model, self._options)
        await self._streams.need_consumer(durable)
        queue = JetStreamQueue(self._connection, self._streams, durable, self._queues.discard)
        await queue.open()
        self._queues.add(queue)
        return queue

    async def give_back(self, token: str) -> None:
        if not token.startswith("$JS.ACK."):
            raise ConfigError(f"{token!r} is no token of a claim")
        await self._connection.ready()
        await self._connection.publish(token, NAK)

    async def append(self, subject: str, body: bytes, headers: Mapping[str, str], *, expected: int) -> int:
        parsed = log_subject(subject, self.subjects.namespace)
        check_body(body)
        reply = await self._connection.request(subject, body, {**headers, wire.EXPECTED_LAST: str(expected)})
        try:
            sequence = int(wire.decoded(reply.raw.data)["seq"])
        except wire.ApiError as error:
            mapped = error.mapped()
            if not isinstance(mapped, Fenced):
                raise mapped from error
            record = (
                await read_last(self._connection, self.subjects.stream(parsed.kind), subject) if reply.resent else None
            )
            # Sent twice because the connection broke: the first copy may be the one that refuses the second.
            if record is None or record.sequence <= expected or record.body != body or record.headers != dict(headers):
                self.stats.fenced += 1
                raise mapped from error
            sequence = record.sequence
        self.stats.published += 1
        return sequence

    async def read(self, subject: str, after: int = 0) -> list[Message]:
        parsed = log_subject(subject, self.subjects.namespace)
        return await read_all(self._connection, self.subjects.stream(parsed.kind), subject, after)

    async def follow(self, subject: str, after: int = 0, *, fresh: bool = False) -> JetStreamLog:
        parsed = log_subject(subject, self.subjects.namespace)
        stream = self.subjects.stream(parsed.kind)
        log = JetStreamLog(self._connection, stream, subject, after, self._logs.discard)
        self._logs.add(log)
        await log.open(self.subjects.live(subject), fresh=fresh)
        return log

    async def purge_request(self, request_id: str) -> None:
        for kind in (WORK, FEED, OUT):
            await self._streams.purge(self.subjects.stream(kind), self.subjects.of_request(kind, request_id))

    async def survey(self) -> list[Message]:
        found: list[Message] = []
        for kind in (WORK, FEED, OUT):
            stream = self.subjects.stream(kind)
            for subject in await self._streams.subjects_of(stream, self.subjects.everything(kind)):
                last = await read_last(self._connection, stream, subject)
                if last is not None:
                    found.append(last)
        return found

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        check_body(body)
        await self._connection.ready()
        await self._connection.publish(subject, body, headers)

    async def subscribe(self, subject: str, handler: Handler) -> JetStreamSubscription:
        subscription = JetStreamSubscription(self._connection, handler)
        await subscription.open(subject)
        return subscription

    async def key_value(self, bucket: str, *, ttl_s: float | None = None) -> JetStreamKeyValue:
        name = self.subjects.bucket(bucket)
        await self._streams.need_stream(bucket_config(name, ttl_s, self._options))
        return JetStreamKeyValue(self._connection, self._streams, name)

    async def object_store(self, bucket: str) -> JetStreamObjects:
        name = self.subjects.bucket(bucket)
        await self._streams.need_stream(objects_config(name, self._options))
        return JetStreamObjects(self._connection, self._streams, name)

    async def bury(self, stage: str, model: str, request_id: str, body: bytes, reason: str) -> None:
        check_body(body)
        headers = {"omni-reason": reason[:_REASON_LENGTH], "omni-request-id": request_id}
        reply = await self._connection.request(self.subjects.dead(stage, model, request_id), body, headers)
        try:
            wire.decoded(reply.raw.data)
        except wire.ApiError as error:
            raise error.mapped() from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for queue in list(self._queues):
            await queue.close()
        for log in list(self._logs):
            await log.close()
        await self._connection.close()

    def _give_up(self) -> None:
        """The broker threw us out: whoever waits must learn it."""
        for queue in list(self._queues):
            queue.refuse()
        for log in list(self._logs):
            log.check()

    async def _resume(self) -> None:
        """The broker was away: ask again for work, and look at every log."""
        for queue in list(self._queues):
            await queue.renew()
        for log in list(self._logs):
            log.check()
