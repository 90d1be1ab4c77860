"""Gives an utterance its text as it arrives, beside the frames that are made of it already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from omnistage_talker.models.frames import Utterance


class ArrivingUtterance:
    """Reads pieces of text into an utterance. An async context manager; its reader ends with the block.

    Args:
        pieces: the text.
        utterance: takes it; its calls run in a thread.
        changed: called when the utterance has grown or has failed.

    Attributes:
        error: what the iterator raised; nothing comes after it.
    """

    def __init__(self, pieces: AsyncIterator[str], utterance: Utterance, changed: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self.utterance = utterance
        self._pieces = pieces
        self._changed = changed
        self._group = asyncio.TaskGroup()
        self._begun = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._reader = self._group.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        await self._group.__aexit__(None, None, None)

    async def begun(self) -> int:
        """Wait until there is a prompt; its length, 0 if the text is complete and says nothing.

        Raises:
            What the iterator of the pieces raised.
        """
        await self._begun.wait()
        if self.error is not None:
            raise self.error
        return self.utterance.prompt_length or 0

    async def _read(self) -> None:
        said = False
        try:
            async for piece in self._pieces:
                # Blank text before the first word would be read as a word of its own.
                piece = piece if said else piece.lstrip()
                said = said or bool(piece)
                if piece:
                    await asyncio.to_thread(self.utterance.add, piece)
                    self._tell()
            if said:
                await asyncio.to_thread(self.utterance.finish)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, who raises it in its own place
            self.error = error
        self._tell()
        self._begun.set()

    def _tell(self) -> None:
        if self.utterance.prompt_length is not None:
            self._begun.set()
        self._changed()
