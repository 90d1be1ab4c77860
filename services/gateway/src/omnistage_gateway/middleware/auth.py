"""API keys at the door of /v1."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.errors import Unauthenticated
from omnistage_gateway.answer import Sender
from omnistage_gateway.keyring import Keyring

GUARDED = "/v1/"


class Authenticate:
    """Notes the tenant in `request.state.tenant`, or answers 401."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            try:
                scope["state"]["tenant"] = self._keyring.tenant(Headers(scope=scope).get("authorization"))
            except Unauthenticated as error:
                await Sender(send).fail(error)
                return
        await self._app(scope, receive, send)
