"""The JetStream bus passes the conformance suite on a real broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from omnistage.testing.bus_conformance import BusConformance, OpenBus
from omnistage.transport import Bus, BusOptions, Log, Message, connect
from omnistage.transport.jetstream.log import JetStreamLog

SMALL = {"log_max_bytes": 32 << 20, "work_max_bytes": 8 << 20, "dead_max_bytes": 1 << 20, "bucket_max_bytes": 1 << 20}
"""The broker reserves a stream's limit on the disk; the tests make many namespaces."""


@pytest.mark.integration
class TestJetStreamBus(BusConformance):
    @pytest.fixture
    async def open_bus(self, broker_url: str) -> AsyncIterator[OpenBus]:
        self.url = broker_url
        async with contextlib.AsyncExitStack() as stack:

            async def open_one(namespace: str, **options: Any) -> Bus:
                bus = await connect(broker_url, namespace, name="test", options=BusOptions(**(SMALL | options)))
                stack.push_async_callback(bus.close)
                return bus

            yield open_one

    def lose_next_live(self, log: Log) -> None:
        assert isinstance(log, JetStreamLog)
        assert log._subscription is not None
        subscription, deliver = log._subscription, log._on_live

        async def drop_one(raw: Msg) -> None:
            subscription._cb = deliver

        subscription._cb = drop_one

    async def dead_letters(self, bus: Bus) -> list[Message]:
        client = await nats.connect(self.url)
        try:
            stream = bus.subjects.stream("dead")
            info = await client.jetstream().stream_info(stream)
            letters = []
            for sequence in range(1, info.state.last_seq + 1):
                raw = await client.jetstream().get_msg(stream, sequence)
                letters.append(Message(raw.subject or "", raw.data or b"", raw.headers or {}))
            return letters
        finally:
            await client.close()
