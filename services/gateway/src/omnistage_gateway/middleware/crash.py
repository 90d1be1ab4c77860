"""The last line: a bug becomes a 500 in OpenAI's shape, with its place in the log."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.errors import StageFailed
from omnistage.observability import describe_error, get_logger
from omnistage_gateway.answer import Sender

_log = get_logger(__name__)


class ReportCrash:
    """Answers for exceptions that nothing else has caught. An answer that has begun is left unfinished."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            # In the middle of its own body: nobody is left to answer.
            _log.info("client left while sending")
        except Exception as error:  # noqa: BLE001 - the border of the process: client and log must both hear of it
            _log.error("request crashed", failure=describe_error(error), started=started)
            if not started:
                await Sender(send).fail(StageFailed("The server had an error.", code="internal_error"))
