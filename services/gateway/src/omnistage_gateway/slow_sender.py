"""Clients that stall while they send a request: they hold a connection, and are cut off after a while.

The body of a request that is being read has its own limit in `middleware.LimitBody`, which can still answer. Here is
what no application sees: the line and the fields before the body, and a body that is left over when the answer is out.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnistage.observability import get_logger

_log = get_logger(__name__)


class ImpatientProtocol(HttpToolsProtocol):
    """A server's protocol that closes a connection on which a request is begun and not finished.

    A connection between two requests is left to the server's keep-alive limit.

    Attributes:
        limit_s: how long a request may take from its first byte (the connection's first one: from the connection on)
            to the end of its head, and the rest of a body from the end of the answer.
    """

    limit_s: ClassVar[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unfinished = True
        self._patience: asyncio.TimerHandle | None = None

    # uvicorn narrows asyncio's BaseTransport to what a server's connection is.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._weigh()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unfinished = False
        self._weigh()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._weigh()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._unfinished = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """Its last byte."""
        self._unfinished = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out."""
        super().on_response_complete()
        self._weigh()

    def _weigh(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or not self._unfinished:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
        elif self._patience is None:
            self._patience = self.loop.call_later(self.limit_s, self._close)

    def _close(self) -> None:
        self._patience = None
        if self.transport.get_protocol() is self and not self.transport.is_closing():
            _log.info("slow_sender_cut", limit_s=self.limit_s)
            self.transport.close()


def impatient_protocol(limit_s: float) -> type[ImpatientProtocol]:
    """The protocol with that limit."""
    return type("LimitedImpatientProtocol", (ImpatientProtocol,), {"limit_s": limit_s})
