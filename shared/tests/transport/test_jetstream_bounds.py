"""What a client of the broker keeps in memory is bounded."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.errors import BusUnavailable
from omnistage.testing.bus_conformance.steps import eventually
from omnistage.testing.servers import NatsServer, nats_server
from omnistage.transport import BusOptions, Message, connect
from omnistage.transport.jetstream import JetStreamBus, connection

pytestmark = pytest.mark.integration

SMALL = BusOptions(
    log_max_bytes=8 << 20, work_max_bytes=8 << 20, dead_max_bytes=1 << 20, bucket_max_bytes=1 << 20, timeout_s=1.0
)


async def test_a_handler_that_is_too_slow_loses_what_is_beyond_the_limit_and_nobody_else_does(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SUBSCRIPTION_MSGS", 10)
    bus = await connect(broker.url, "bounds", name="test", options=SMALL)
    go_on = asyncio.Event()
    slow: list[bytes] = []
    quick: list[bytes] = []

    async def hesitate(message: Message) -> None:
        await go_on.wait()
        slow.append(message.body)

    async def note(message: Message) -> None:
        quick.append(message.body)

    try:
        await bus.subscribe(bus.subjects.ctl_everyone(), hesitate)
        await bus.subscribe(bus.subjects.presences(), note)
        for number in range(40):
            await bus.send(bus.subjects.ctl_everyone(), b"%d" % number)
            await bus.send(bus.subjects.presence("talker", "one"), b"%d" % number)

            async def heard(count: int = number + 1) -> bool:
                return len(quick) == count

            await eventually(heard)
        go_on.set()

        async def delivered() -> bool:
            return len(slow) >= 10

        await eventually(delivered)
        assert slow == [b"%d" % number for number in range(len(slow))]
        assert len(slow) <= 11, "one in the handler's hands, ten behind it"
        assert bus.stats.errors >= 40 - len(slow)
        await bus.send(bus.subjects.ctl_everyone(), b"later")

        async def goes_on() -> bool:
            return slow[-1] == b"later"

        await eventually(goes_on)
    finally:
        await bus.close()


async def test_what_is_sent_while_the_broker_is_away_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PENDING_BYTES", 10_000)
    async with nats_server() as server:
        bus = await connect(server.url, "bounds", name="test", options=SMALL)
        try:
            await asyncio.to_thread(server.stop)

            assert isinstance(bus, JetStreamBus)

            async def away() -> bool:
                return not bus.connected

            await eventually(away)
            # As acknowledgements are sent, which wait for nothing.
            for _ in range(9):
                await bus._connection.publish("x", b"x" * 1000)
            with pytest.raises(BusUnavailable, match="cannot send"):
                await bus._connection.publish("x", b"x" * 1000)
            with pytest.raises(BusUnavailable, match="not connected"):
                await bus.send(bus.subjects.ctl_everyone(), b"x")
            await asyncio.to_thread(server.start)

            async def back() -> bool:
                return bus.connected

            await eventually(back)
            await bus.send(bus.subjects.ctl_everyone(), b"x")
        finally:
            await bus.close()
