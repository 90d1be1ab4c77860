"""The work queue of a stage and model: one pull request per waiting claim, on a durable shared consumer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from omnistage.errors import BusError, BusUnavailable
from omnistage.observability import get_logger
from omnistage.transport.bus import Message
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.jetstream.streams import Streams
from omnistage.transport.topology import ConsumerConfig, nanoseconds

_log = get_logger(__name__)

PULL_EXPIRES_S, HEARTBEAT_S = 20.0, 5.0
_SILENCE_S = 2 * HEARTBEAT_S + 1.0
"""A pull request that gave no sign for so long is lost."""
_REFUSED_PAUSE_S = 0.1
RECOVERY_S = 2.0
"""For so long after the broker was away it may take live holders for dead: they could not be heard."""
LEFT_ALONE_S = 1.0
"""An item delivered again in that time is left to its holder for so long: two heartbeats and more."""
_ACK_PREFIX = "$JS.ACK."
ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class JetStreamClaim:
    """A delivered work item."""

    def __init__(self, connection: Connection, raw: Msg) -> None:
        sequence, self._deliveries = wire.delivery(raw)
        self._connection = connection
        self._reply = raw.reply
        self._message = Message(raw.subject, raw.data, wire.plain_headers(raw.headers), sequence)

    @property
    def message(self) -> Message:
        return self._message

    @property
    def deliveries(self) -> int:
        return self._deliveries

    @property
    def token(self) -> str:
        return self._reply

    async def ack(self) -> None:
        await self._connection.publish(self._reply, ACK)

    async def nak(self, delay_s: float = 0.0) -> None:
        await self._connection.publish(self._reply, nak_body(delay_s))

    async def in_progress(self) -> None:
        await self._connection.publish(self._reply, IN_PROGRESS)


def nak_body(delay_s: float) -> bytes:
    """Body of a negative acknowledgement."""
    return NAK + b" " + msgspec.json.encode({"delay": nanoseconds(delay_s)}) if delay_s > 0 else NAK


class JetStreamQueue:
    """Claims of one instance.

    There are never more pull requests under way than claims that wait. One whose claim was cancelled stays on the
    broker and serves the next claim; an item that finds nobody waiting is given back at once.
    """

    def __init__(
        self,
        connection: Connection,
        streams: Streams,
        consumer: ConsumerConfig,
        on_close: Callable[[JetStreamQueue], None],
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._consumer = consumer
        self._on_close = on_close
        self._waiting: deque[asyncio.Future[Msg]] = deque()
        self._pulls: dict[str, float] = {}
        self._tokens = itertools.count()
        self._inbox = connection.new_inbox() + "."
        self._subscription: Subscription | None = None
        self._closed = False
        self._renewed_at = float("-inf")
        body = {
            "batch": 1,
            "expires": nanoseconds(PULL_EXPIRES_S),
            "idle_heartbeat": nanoseconds(HEARTBEAT_S),
        }
        self._pull_body = msgspec.json.encode(body)
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"

    async def open(self) -> None:
        await self._connection.ready()
        self._subscription = await self._connection.subscribe(self._inbox + "*", self._on_message)

    async def claim(self) -> JetStreamClaim:
        """Wait for an item, through broker restarts too. Raises BusUnavailable once the queue is closed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Msg] = loop.create_future()
        self._waiting.append(waiter)
        try:
            while not waiter.done():
                if self._closed or self._connection.closed:
                    raise BusUnavailable("this queue is closed")
                await self._pull()
                await asyncio.wait({waiter}, timeout=_SILENCE_S)
                self._forget_lost_pulls()
            claim = JetStreamClaim(self._connection, waiter.result())
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                with contextlib.suppress(BusError):
                    await self._connection.publish(waiter.result().reply, NAK)
            waiter.cancel()
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)
            raise
        if claim.deliveries > 1:
            self._connection.stats.redelivered += 1
        return claim

    async def pending(self) -> int:
        try:
            info = await self._connection.api(f"$JS.API.CONSUMER.INFO.{self._consumer.stream}.{self._consumer.name}")
        except wire.ApiError as error:
            raise error.mapped() from error
        return int(info["num_pending"])

    async def renew(self) -> None:
        """Ask again for all that wait: the broker was away and has forgotten our pull requests."""
        self._pulls.clear()
        self._renewed_at = asyncio.get_running_loop().time()
        await self._pull()

    def refuse(self) -> None:
        """Claims that wait raise BusUnavailable."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(BusUnavailable("this queue is closed"))

    async def close(self) -> None:
        """Leave the queue; waiting claims raise BusUnavailable, items under way are given back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self.refuse()
        if self._subscription is not None:
            await self._connection.drain(self._subscription)

    async def _pull(self) -> None:
        """As many pull requests as claims wait. Not while disconnected: `renew` follows the reconnect."""
        wanted = sum(not waiter.done() for waiter in self._waiting)
        while len(self._pulls) < wanted and self._connection.connected:
            token = str(next(self._tokens))
            self._pulls[token] = asyncio.get_running_loop().time()
            try:
                await self._connection.publish(self._pull_subject, self._pull_body, reply=self._inbox + token)
            except BusError:
                self._pulls.pop(token, None)
                raise

    def _forget_lost_pulls(self) -> None:
        oldest = asyncio.get_running_loop().time() - _SILENCE_S
        self._pulls = {token: sign for token, sign in self._pulls.items() if sign > oldest}

    async def _on_message(self, raw: Msg) -> None:
        if raw.reply.startswith(_ACK_PREFIX):
            await self._on_item(raw)
            return
        # The broker speaks about a pull request: on its inbox, with a status.
        token, status = raw.subject.removeprefix(self._inbox), wire.status(raw)
        if status == wire.HEARTBEAT:
            if token in self._pulls:
                self._pulls[token] = asyncio.get_running_loop().time()
        else:
            self._pulls.pop(token, None)
            await self._on_refusal(status)

    async def _on_item(self, raw: Msg) -> None:
        # An item does not say which of our requests it answers; the broker serves them oldest first.
        if self._pulls:
            del self._pulls[next(iter(self._pulls))]
        if self._may_be_held(raw):
            # A sign of life from its holder postpones this further; without one it comes again.
            await self._connection.publish(raw.reply, nak_body(LEFT_ALONE_S))
            await self._pull()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(raw)
                return
        await self._connection.publish(raw.reply, NAK)

    def _may_be_held(self, raw: Msg) -> bool:
        """Whether the broker gave an item to us only because it was away while the item's holder spoke."""
        recovering = asyncio.get_running_loop().time() - self._renewed_at < RECOVERY_S
        return recovering and wire.delivery(raw)[1] > 1

    async def _on_refusal(self, status: str | None) -> None:
        """A pull request ended without an item: it expired, or the consumer is not there (any more)."""
        try:
            if status not in wire.PULL_ENDED:
                await asyncio.sleep(_REFUSED_PAUSE_S)
                await self._streams.reassert_consumer(self._consumer.stream, self._consumer.name)
            await self._pull()
        except BusError as error:
            # Claims ask again by themselves after a while.
            _log.warning("pull failed", consumer=self._consumer.name, status=status, error=str(error))
