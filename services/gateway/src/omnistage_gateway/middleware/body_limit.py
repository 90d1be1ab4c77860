"""Ceilings for request bodies, declared or not: how large they are, and how long they take to come."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.errors import InvalidRequest, PayloadTooLarge
from omnistage_gateway.answer import Sender

_LEAST_BYTES = 64 * 1024
"""A body may take longer than the limit if so many bytes come within each; a trickle is no progress."""


class RequestTimedOut(InvalidRequest):
    """The client stopped sending in the middle of its request."""

    code = "request_timeout"
    status = 408


class LimitBody:
    """Answers 413 when Content-Length is above the limit; counts the bytes of a body that does not declare it.

    Answers 408 when a body that is being read stops coming.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, read_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._read_s = read_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit():
            await Sender(send).fail(InvalidRequest("The Content-Length header is not a number."))
            return
        if int(declared) > self._max_bytes:
            await Sender(send).fail(self._too_large())
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        taken, more = 0, True
        timely = self._timely(receive)

        async def counted() -> Message:
            nonlocal taken, more
            message = await (timely() if more else receive())
            taken += len(message.get("body", b""))
            more = message.get("more_body", False)
            if taken > self._max_bytes:
                raise self._too_large()
            return message

        return counted

    def _timely(self, receive: Receive) -> Receive:
        now = asyncio.get_running_loop().time
        end, taken = now() + self._read_s, 0

        async def timely() -> Message:
            nonlocal end, taken
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise RequestTimedOut(f"The rest of the request did not come within {self._read_s:g} s.") from None
            taken += len(message.get("body", b""))
            if taken >= _LEAST_BYTES:
                end, taken = now() + self._read_s, 0
            return message

        return timely

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The request body is larger than {self._max_bytes} bytes.")
