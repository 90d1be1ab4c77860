"""Sends clients on to another gateway while this one drains, without failing a request."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Leaving:
    """Plain ASGI around the app: once `begin` was called, every answer closes its connection (RFC 9112, section 9.6).

    The request itself is served; the client's next one opens a new connection, which another gateway accepts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._leaving = False

    def begin(self) -> None:
        """From now on."""
        self._leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._leaving or scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, closing)
