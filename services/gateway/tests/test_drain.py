"""A gateway that is told to stop under load finishes what it accepted, and refuses what comes in so many words."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from omnistage.config import load_models
from omnistage.contracts import (
    AudioDelta,
    Cancel,
    EngineStatus,
    Inline,
    Presence,
    Work,
    decode_control,
    decode_work,
    encode,
)
from omnistage.errors import Fenced
from omnistage.runtime.edges import EdgeWriter
from omnistage.runtime.meta import Meta
from omnistage.runtime.tasks import TaskBag
from omnistage.testing.servers import nats_server
from omnistage.transport import Bus, Message, connect
from omnistage_gateway.bootstrap import GatewayProcess
from omnistage_gateway.settings import Settings

pytestmark = pytest.mark.integration

PIECES, PIECE = 20, 1_000
PAUSE_S = 0.05
SLOTS = 4
BODY = {"model": "tts-1", "voice": "alloy", "input": "A text.", "response_format": "pcm"}
WHOLE = b"".join(np.full(PIECE, number, "<i2").tobytes() for number in range(PIECES))


class Stages:
    """What a gateway sees of all stages: they are ready, and every speech request takes a second."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.cancelled: list[str] = []
        self.gateway: list[Presence] = []
        self.owners: set[str] = set()
        self._faults: list[BaseException] = []
        self._tasks = TaskBag("stages", on_error=self._faults.append)

    async def start(self) -> None:
        await self.bus.subscribe(self.bus.subjects.ctl_requests(), self._told)
        await self.bus.subscribe(self.bus.subjects.presences(), self._heard)
        self._tasks.spawn(self._claim())
        self._tasks.spawn(self._announce())

    async def close(self) -> None:
        await self._tasks.close()
        assert self._faults == []

    async def _told(self, message: Message) -> None:
        control = decode_control(message.body)
        if isinstance(control, Cancel):
            self.cancelled.append(control.request_id)

    async def _heard(self, message: Message) -> None:
        presence = decode_control(message.body)
        if isinstance(presence, Presence) and presence.service == "gateway":
            self.gateway.append(presence)

    async def _announce(self) -> None:
        engines = {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"}
        while True:
            for service, engine in engines.items():
                presence = Presence(
                    service=service, instance=f"{service}-1", state="ready", version="0", contract=1, pid=1, host="h",
                    started=0.0, engines=(EngineStatus(engine=engine, ready=True, slots=SLOTS, service_s=0.1),),
                )  # fmt: skip
                await self.bus.send(self.bus.subjects.presence(service, presence.instance), encode(presence))
            await asyncio.sleep(0.5)

    async def _claim(self) -> None:
        queue = await self.bus.work_queue("talker", "heart")
        while True:
            claim = await queue.claim()
            self._tasks.spawn(self._speak(decode_work(claim.message.body), Meta.from_headers(claim.message.headers)))
            await claim.ack()

    async def _speak(self, work: Work, meta: Meta) -> None:
        self.owners.add(meta.gateway)
        subject = self.bus.subjects.out("codec", "heart-wave", work.request_id, "codec-gateway")
        names: dict[str, Any] = {"request_id": work.request_id, "edge": "codec-gateway", "instance": "i"}
        writer = EdgeWriter(self.bus, subject, **names, meta=meta)
        await writer.open()
        for number in range(PIECES):
            await asyncio.sleep(PAUSE_S)
            data = np.full(PIECE, number, "<i2").tobytes()
            payload = Inline(data=data, dtype="int16", shape=(PIECE,))
            try:
                await writer.send(AudioDelta, payload=payload, sample_rate_hz=24_000, offset=number * PIECE)
            except Fenced:
                return
        await writer.finish()


class Running:
    """A gateway and the stages behind it."""

    def __init__(self, url: str, process: GatewayProcess, task: asyncio.Task[int], stages: Stages) -> None:
        self.url = url
        self.process = process
        self.task = task
        self.stages = stages

    async def ready(self) -> None:
        async with httpx.AsyncClient(base_url=self.url) as client, asyncio.timeout(20):
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[Running]:
    async with nats_server() as server:
        with (
            tempfile.TemporaryDirectory() as arena,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener,
        ):
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            chosen = Settings(
                namespace="test",
                instance="gw-1",
                bus_url=server.url,
                arena_dir=Path(arena),
                listen_fd=socket.dup(listener.fileno()),
                **settings,
            )
            process = GatewayProcess(chosen, load_models())
            tasks = TaskBag("gateway")
            task = tasks.spawn(process.run())
            bus = await connect(server.url, "test", name="stages")
            async with asyncio.timeout(20):
                while not await _stands(bus):
                    await asyncio.sleep(0.05)
            stages = Stages(bus)
            await stages.start()
            running = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", process, task, stages)
            listener.close()
            try:
                await running.ready()
                yield running
            finally:
                process.stop()
                await asyncio.wait({task})
                await stages.close()
                await bus.close()


async def _stands(bus: Bus) -> bool:
    """Whether the gateway has made the streams."""
    try:
        await bus.read(bus.subjects.out("codec", "heart-wave", "none", "codec-gateway"))
    except Exception:  # noqa: BLE001 - whatever it is, the streams are not there yet
        return False
    return True


async def test_everything_that_was_accepted_is_finished() -> None:
    async with gateway(drain_s=20) as running, httpx.AsyncClient(base_url=running.url, timeout=30) as client:
        accepted = [asyncio.ensure_future(client.post("/v1/audio/speech", json=BODY)) for _ in range(3 * SLOTS)]
        while not any(len(presence.running) == 3 * SLOTS for presence in running.stages.gateway):
            await asyncio.sleep(0.01)
        running.process.stop()
        answers = await asyncio.gather(*accepted)
        assert [answer.status_code for answer in answers] == [200] * 3 * SLOTS
        assert all(answer.content == WHOLE for answer in answers)
        assert await running.task == 0
    assert running.stages.cancelled == []
    assert running.stages.owners == {"gw-1"}
    assert running.stages.gateway[-1].state == "draining"


async def test_a_request_on_a_standing_connection_is_served_and_sent_on() -> None:
    async with gateway(drain_s=20) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=30) as client:
            accepted = asyncio.ensure_future(client.post("/v1/audio/speech", json=BODY))
            # A connection that stands and carries nothing.
            async with httpx.AsyncClient(base_url=running.url, timeout=30) as late:
                await late.get("/health")
                while not any(presence.running for presence in running.stages.gateway):
                    await asyncio.sleep(0.01)
                running.process.stop()
                while running.stages.gateway[-1].state != "draining":
                    await asyncio.sleep(0.005)
                served = await late.post("/v1/audio/speech", json=BODY)
                assert (served.status_code, served.content) == (200, WHOLE)
                assert served.headers["connection"] == "close"
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(base_url=running.url) as fresh:
                    await fresh.get("/health")
            assert (await accepted).content == WHOLE
        assert await running.task == 0


async def test_what_takes_too_long_is_ended_and_cancelled() -> None:
    async with gateway(drain_s=0.4) as running, httpx.AsyncClient(base_url=running.url, timeout=30) as client:
        accepted = asyncio.ensure_future(client.post("/v1/audio/speech", json=BODY))
        while not any(presence.running for presence in running.stages.gateway):
            await asyncio.sleep(0.01)
        running.process.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            await accepted
        assert await running.task == 0
        async with asyncio.timeout(5):
            while not running.stages.cancelled:
                await asyncio.sleep(0.01)
