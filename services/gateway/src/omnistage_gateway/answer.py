"""Answers that are made while they are sent: one place for the status, broken streams and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnistage.errors import OmnistageError
from omnistage.observability import get_logger
from omnistage_gateway.dispatch.interface import Event, Running
from omnistage_gateway.problems import error_body, error_headers, http_status

_log = get_logger(__name__)

Shape = Literal["bytes", "events"]


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON; what UTF-8 cannot hold stays escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def server_event(value: Any) -> bytes:
    """One server-sent event (WHATWG HTML, section 9.2) with a JSON body."""
    return b"data: " + to_json(value) + b"\n\n"


class Sender:
    """Sends one HTTP answer: status and headers once, then the body in pieces."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._shape: Shape = "bytes"
        self.started = False
        self.ended = False

    async def start(
        self, media_type: str, headers: Mapping[str, str] | None = None, *, shape: Shape = "bytes", status: int = 200
    ) -> None:
        """Decide for an answer. From here on an error can no longer change the status.

        Args:
            shape: what a stream that breaks looks like: "bytes" are cut off, "events" end with an error event.
        """
        self.started = True
        self._shape = shape
        fields = {"content-type": media_type, **(headers or {})}
        if "content-length" not in fields:
            # Proxies must neither keep a stream nor collect it before they pass it on (nginx reads the second).
            fields.update({"cache-control": "no-cache", "x-accel-buffering": "no"})
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(key.encode(), value.encode()) for key, value in fields.items()],
            }
        )

    async def chunk(self, data: bytes) -> None:
        """The next piece; leaves at once."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(
        self, media_type: str, data: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200
    ) -> None:
        """An answer in one piece, with its length."""
        await self.start(media_type, {**(headers or {}), "content-length": str(len(data))}, status=status)
        await self.end(data)

    async def fail(self, error: OmnistageError) -> None:
        """Tell the client of an error in whatever way is still open.

        A stream of bytes is left unfinished: the server then closes the connection without the end of the body, and
        the client sees that it is incomplete.
        """
        if not self.started:
            await self.whole(
                "application/json", to_json(error_body(error)), error_headers(error), status=http_status(error)
            )
        elif self._shape == "events":
            await self.end(server_event(error_body(error)))
        _log.info("request failed", code=error.code, stage=error.stage, started=self.started)


class Answer(Response):
    """Runs `work` for as long as the client is there.

    When the client leaves, the work is cancelled at once, wherever it waits; so every context that it has entered is
    left, and with it the request at all stages.
    """

    def __init__(self, work: Callable[[Sender], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(send)
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(self._run(sender))
            watcher = group.create_task(_cancel_when_gone(receive, sender, worker))
            worker.add_done_callback(lambda _: watcher.cancel())

    async def _run(self, sender: Sender) -> None:
        try:
            await self._work(sender)
        except OmnistageError as error:
            await sender.fail(error)


async def _cancel_when_gone(receive: Receive, sender: Sender, worker: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    # Servers report the end of a complete answer as a disconnect too.
    if not sender.ended:
        worker.cancel()


@asynccontextmanager
async def events_of(running: Running) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a request; a generator behind them is closed on the way out, not by the garbage collector."""
    events = running.events()
    try:
        yield events
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
