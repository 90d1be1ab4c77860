"""What one request's reader and the engine's thread share."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from omnistage.ar.sequence import FinishReason, Sequence, Token
from omnistage.errors import OmnistageError


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One more token of an answer.

    Attributes:
        token: None only where the answer was complete before its first step (a resumed one).
        index: its position in the answer.
        logprob, top, extra: as the runner emitted them.
        finish_reason: set on the last one.
        num_cached: prompt tokens that came from the prefix cache.
    """

    token: Token | None
    index: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    extra: Any = None
    finish_reason: FinishReason | None = None
    num_cached: int = 0


class Stream:
    """Outputs on their way from the engine's thread to a reader in an event loop.

    The engine counts what it `sent`, the reader what it `read`; each number has one writer. A sequence whose reader is
    too far behind is held, so the buffer stays bounded.
    """

    def __init__(self, sequence: Sequence, loop: asyncio.AbstractEventLoop) -> None:
        self.sequence = sequence
        self.loop = loop
        self.sent = 0
        self.read = 0
        self._items: deque[StepOutput | OmnistageError] = deque()
        self._ready = asyncio.Event()

    @property
    def unread(self) -> int:
        """Outputs sent and not read yet."""
        return self.sent - self.read

    def put(self, item: StepOutput | OmnistageError) -> None:
        """Hand an item to the reader. In the loop's thread only."""
        self._items.append(item)
        self._ready.set()

    async def get(self) -> StepOutput:
        """The next output.

        Raises:
            OmnistageError: the request failed; nothing follows.
        """
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        self.read += 1
        if isinstance(item, OmnistageError):
            raise item
        return item
