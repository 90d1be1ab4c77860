"""Clients that stop reading: they slow only themselves, and are cut off after a while.

Behind a client that does not read, its own answer stands still: the transport's buffer is full (64 KiB), so the answer
is not written on, so its events are not taken, so its logs are not read ahead. That is all the memory that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnistage.observability import get_logger

_log = get_logger(__name__)


def cutting_protocol(
    limit_s: float, cut: Callable[[], None], base: type[HttpToolsProtocol] = HttpToolsProtocol
) -> type[HttpToolsProtocol]:
    """A server's protocol that aborts a connection whose client has taken nothing for a while.

    Args:
        limit_s: how long it may take nothing while bytes wait for it.
        cut: told of each such client.
        base: the protocol to extend.
    """

    # mypy knows no class whose base is an argument.
    class Cutting(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._timer: asyncio.TimerHandle | None = None
            self._left = 0

        def pause_writing(self) -> None:
            """The transport's buffer is full; until it is not, nothing is added to it."""
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            """The client has read."""
            self._unwatch()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            self._left = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(limit_s, self._look)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _look(self) -> None:
            if self.transport.get_write_buffer_size() < self._left:
                self._watch()
                return
            self._timer = None
            _log.warning("slow_reader_cut", limit_s=limit_s)
            cut()
            self.transport.abort()

    return Cutting
