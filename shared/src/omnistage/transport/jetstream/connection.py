"""The connection to the broker: requests that survive a reconnect, batches of replies, subscriptions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from omnistage.errors import BusUnavailable, ConfigError, MessageTooLarge
from omnistage.observability import get_logger
from omnistage.transport.addresses import checked, shown
from omnistage.transport.bus import ReconnectCallback
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.client import Client
from omnistage.transport.options import BusOptions
from omnistage.transport.stats import BusStats

_log = get_logger(__name__)

RECONNECT_WAIT_S = 0.1
PING_INTERVAL_S, PINGS_UNANSWERED = 0.5, 3
"""A network that is cut tells nobody: what counts is that the broker is silent, for two seconds. Less would take a
process or a broker that waits for a busy core for a cut."""
PENDING_BYTES = 8 << 20
"""What is buffered while reconnecting (acks, control) before a publish is refused."""
SUBSCRIPTION_MSGS, SUBSCRIPTION_BYTES = 65_536, 64 << 20
_NO_RESPONDERS_PAUSE_S = 0.05
_CLOSE_S = 2.0

Callback = Callable[[Msg], Awaitable[None]]


class _Lost(Exception):
    """The connection broke while a request was under way: it may or may not have arrived."""


@dataclass
class _Exchange:
    future: asyncio.Future[Msg]
    collected: list[Msg] | None = None


@dataclass(frozen=True)
class Reply:
    """Answer to a request.

    Attributes:
        raw: the last message, which ends the answer.
        collected: the messages before it, if asked for.
        resent: the request was sent again after a broken connection, so it may have been carried out twice.
    """

    raw: Msg
    collected: list[Msg] = field(default_factory=list)
    resent: bool = False


class Connection:
    """One client connection. All errors of the client library end here, as errors of ours."""

    def __init__(self, options: BusOptions, stats: BusStats) -> None:
        self.options = options
        self.stats = stats
        self._client = Client()
        self._up = asyncio.Event()
        self._exchanges: dict[str, _Exchange] = {}
        self._tokens = itertools.count()
        self._inbox = ""
        self._opening = True
        self._closing = False
        self._ended = False
        self._after_reconnect: list[ReconnectCallback] = []
        self._missing_stream: ReconnectCallback | None = None
        self._thrown_out: Callable[[], None] | None = None

    async def open(self, url: str, *, name: str, user: str | None, password: str | None) -> None:
        """Connect.

        Raises:
            BusUnavailable: nobody answers within the timeout.
            ConfigError: the broker refuses the user or password.
        """
        try:
            async with asyncio.timeout(self.options.timeout_s):
                await self._client.connect(
                    servers=checked(url),
                    name=name,
                    user=user,
                    password=password,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnect,
                    reconnected_cb=self._on_reconnect,
                    closed_cb=self._on_closed,
                    max_reconnect_attempts=-1,
                    # The library only sleeps for its times and compares them, so fractions are fine.
                    reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
                    connect_timeout=2,
                    ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type]
                    max_outstanding_pings=PINGS_UNANSWERED,
                    pending_size=PENDING_BYTES,
                )
                self._opening = False
                self._inbox = self._client.new_inbox() + "."
                await self._client.subscribe(self._inbox + "*", cb=self._on_reply)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            await self.close()
            raise BusUnavailable(f"no broker at {shown(url)}: {error or 'no answer in time'}") from error
        except ConfigError:
            await self.close()
            raise
        self._up.set()

    @property
    def connected(self) -> bool:
        return self._up.is_set() and self._client.is_connected

    @property
    def closed(self) -> bool:
        """Closed for good, by `close` or because the broker refused this client."""
        return self._ended

    def after_reconnect(self, callback: ReconnectCallback) -> None:
        """Run it after every reconnect, in the order of registration; its errors are logged."""
        self._after_reconnect.append(callback)

    def when_stream_is_missing(self, callback: ReconnectCallback) -> None:
        """Run it once when a request finds nobody who answers, before it is sent again."""
        self._missing_stream = callback

    def when_thrown_out(self, callback: Callable[[], None]) -> None:
        """Call it when the broker ended this client for good."""
        self._thrown_out = callback

    async def request(self, subject: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """Send and wait for the answer; sent again when the connection broke or no stream answered yet.

        Raises:
            BusUnavailable: no answer within the timeout.
        """
        return await self._ask(subject, body, headers, look=True)

    async def batch(self, subject: str, body: bytes) -> Reply:
        """Send and collect answers up to the status message that ends them."""
        return await self._ask(subject, body, None, collect=True, look=True)

    async def api(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A request to the broker's API. Raises wire.ApiError if the broker refuses."""
        reply = await self._ask(subject, msgspec.json.encode(body) if body else b"", None)
        return wire.decoded(reply.raw.data)

    async def barrier(self) -> None:
        """Return when the broker has acted on everything that was sent before: a message to ourselves came back."""
        await self._ask(None, b"", None)

    async def publish(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send without waiting for an answer; while reconnecting it is buffered."""
        try:
            await self._client.publish(subject, body, reply=reply, headers=dict(headers) if headers else None)
        except nats.errors.MaxPayloadError as error:
            raise MessageTooLarge(f"{len(body)} bytes are over the broker's limit") from error
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot send: {error}") from error

    async def subscribe(self, subject: str, callback: Callback) -> Subscription:
        """Core subscription. It stands on the broker once a later request or `barrier` has been answered."""
        try:
            return await self._client.subscribe(
                subject,
                cb=callback,
                pending_msgs_limit=SUBSCRIPTION_MSGS,
                pending_bytes_limit=SUBSCRIPTION_BYTES,
            )
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot subscribe: {error}") from error

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; whatever was under way is dropped. Idempotent."""
        try:
            await subscription.unsubscribe()
        except (nats.errors.BadSubscriptionError, nats.errors.ConnectionClosedError):
            return
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot unsubscribe: {error}") from error

    async def drain(self, subscription: Subscription) -> None:
        """End a subscription after everything that the broker had sent was handled, in bounded time."""
        try:
            if self.connected:
                async with asyncio.timeout(_CLOSE_S):
                    await subscription.drain()  # type: ignore[no-untyped-call]
            else:
                await subscription.unsubscribe()
        except TimeoutError:
            _log.warning("subscription closed without drain", subject=subscription.subject)
        except nats.errors.Error as error:
            _log.debug("subscription was closed", detail=str(error))

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def ready(self) -> None:
        """Wait until the connection stands. Raises BusUnavailable after the timeout."""
        if self.connected:
            return
        if self._ended:
            raise BusUnavailable("this bus is closed")
        try:
            async with asyncio.timeout(self.options.timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise BusUnavailable("not connected to the broker") from None

    async def close(self) -> None:
        """Flush and leave, in bounded time. Idempotent."""
        if self._closing:
            return
        self._closing = True
        try:
            if self.connected:
                async with asyncio.timeout(_CLOSE_S):
                    await self.barrier()
        except (TimeoutError, BusUnavailable):
            _log.warning("bus closed without flush")
        finally:
            self._opening, self._ended = False, True
            self._fail_exchanges()
            await self._client.close()
            self._up.clear()

    async def _ask(
        self,
        subject: str | None,
        body: bytes,
        headers: Mapping[str, str] | None,
        *,
        collect: bool = False,
        look: bool = False,
    ) -> Reply:
        resent = False
        try:
            async with asyncio.timeout(self.options.timeout_s):
                while True:
                    await self.ready()
                    try:
                        raw, collected = await self._exchange(subject, body, headers, collect=collect)
                    except _Lost:
                        resent = True
                        continue
                    if wire.status(raw) != wire.NO_RESPONDERS:
                        return Reply(raw, collected, resent)
                    if look and self._missing_stream is not None:
                        look = False
                        await self._missing_stream()
                    await asyncio.sleep(_NO_RESPONDERS_PAUSE_S)
        except TimeoutError:
            raise BusUnavailable("the broker did not answer in time") from None

    async def _exchange(
        self, subject: str | None, body: bytes, headers: Mapping[str, str] | None, *, collect: bool
    ) -> tuple[Msg, list[Msg]]:
        token = str(next(self._tokens))
        collected: list[Msg] = []
        exchange = _Exchange(asyncio.get_running_loop().create_future(), collected if collect else None)
        self._exchanges[token] = exchange
        reply = self._inbox + token
        try:
            await self.publish(subject or reply, body, headers, reply=reply if subject else "")
            return await exchange.future, collected
        finally:
            self._exchanges.pop(token, None)

    async def _on_reply(self, raw: Msg) -> None:
        exchange = self._exchanges.get(raw.subject.rpartition(".")[2])
        if exchange is None or exchange.future.done():
            return
        if exchange.collected is not None and wire.status(raw) is None:
            exchange.collected.append(raw)
        else:
            exchange.future.set_result(raw)

    def _fail_exchanges(self) -> None:
        for exchange in self._exchanges.values():
            if not exchange.future.done():
                exchange.future.set_exception(_Lost())

    async def _on_error(self, error: Exception) -> None:
        self.stats.errors += 1
        if self._opening and "authorization" in str(error).lower():
            raise ConfigError("the broker refuses this user or password")
        # While the broker is away every attempt fails; that it is away was said once.
        say = _log.warning if self._up.is_set() else _log.debug
        say("bus error", error=type(error).__name__, detail=str(error))

    async def _on_disconnect(self) -> None:
        if not self._closing and not self._opening:
            _log.warning("bus disconnected")
        self._up.clear()
        self._fail_exchanges()

    async def _on_reconnect(self) -> None:
        self.stats.reconnects += 1
        self._up.set()
        _log.warning("bus reconnected", reconnects=self.stats.reconnects)
        for callback in self._after_reconnect:
            try:
                await callback()
            except Exception:  # noqa: BLE001 - one callback's failure must not keep the others from running
                self.stats.errors += 1
                _log.exception("reconnect callback failed")

    async def _on_closed(self) -> None:
        self._up.clear()
        self._fail_exchanges()
        if not self._closing and not self._opening:
            self._ended = True
            _log.error("bus closed by broker")
            if self._thrown_out is not None:
                self._thrown_out()
