"""A link between two hosts, in user space: slow, lossy, and to be cut. TCP passes through it in order, as it does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

SEGMENT_BYTES = 1448
RESEND_S = 0.2
"""After this time TCP sends a lost segment again, and doubles the time with each further loss of the same one."""
_READ_BYTES = 64 * 1024
_UNDER_WAY = 256


@dataclass
class Link:
    """What lies between the hosts; it may be changed while it is used.

    Attributes:
        delay_s: each way.
        loss: probability that a segment is lost; it arrives later then, and with it everything behind it.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    lost: int = 0

    def transit_s(self, nbytes: int) -> float:
        """How long so many bytes are under way."""
        stall_s = 0.0
        for _ in range(-(-nbytes // SEGMENT_BYTES)):
            resend_s = RESEND_S
            while self.chance.random() < self.loss:
                self.lost += 1
                stall_s += resend_s
                resend_s *= 2
        return self.delay_s + stall_s


class _Relays:
    """Ports that lead over a link; lives on an event loop of its own thread."""

    def __init__(self, link: Link, host: str) -> None:
        self._link = link
        self._host = host
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def lead_to(self, host: str, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # What was sent into a cut line waits there, the first word of a connection included.
            await self._whole.wait()
            with contextlib.closing(writer), contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                with contextlib.closing(far_writer):
                    await self._pass_both(reader, writer, far_reader, far_writer)

        server = await asyncio.start_server(connected, self._host, 0)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def cut(self) -> None:
        self._whole.clear()

    async def heal(self) -> None:
        self._whole.set()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _pass_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        passing = [
            asyncio.ensure_future(self._pass(reader, far_writer)),
            asyncio.ensure_future(self._pass(far_reader, writer)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
        loop = asyncio.get_running_loop()

        async def arrive() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                await self._whole.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        arriving = asyncio.ensure_future(arrive())
        try:
            due, data = 0.0, b"-"
            while data:
                data = await reader.read(_READ_BYTES)
                due = max(due, loop.time() + self._link.transit_s(len(data)))
                await under_way.put((due, data))
            await arriving
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)


class Relay:
    """The ports of a link, from outside its thread."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop, relays: _Relays) -> None:
        self.link = link
        self._loop = loop
        self._relays = relays

    def lead_to(self, host: str, port: int) -> int:
        """A port from which everything passes over the link to another one."""
        return self._do(self._relays.lead_to(host, port)).result(10)

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self._do(self._relays.cut()).result(10)

    def heal(self) -> None:
        """What was sent meanwhile arrives, in order."""
        self._do(self._relays.heal()).result(10)

    def close(self) -> None:
        self._do(self._relays.close()).result(10)

    def _do(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@contextmanager
def relay(link: Link, host: str = "127.0.0.1") -> Iterator[Relay]:
    """A link whose near ends are ports of `host`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay")
    thread.start()
    made = Relay(link, loop, _Relays(link, host))
    try:
        yield made
    finally:
        made.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
