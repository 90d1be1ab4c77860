"""A ceiling for request bodies, declared or not."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.errors import InvalidRequest, PayloadTooLarge
from omnistage_gateway.answer import Sender


class LimitBody:
    """Answers 413 when Content-Length is above the limit; counts the bytes of a body that does not declare it."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

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
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The request body is larger than {self._max_bytes} bytes.")
