"""What handlers see of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from omnistage.contracts import SpeechOptions
from omnistage.urgency import Reading
from omnistage_talker.engine.engine import SpokenFrames
from omnistage_talker.models.base import FrameArray, Reference


class Speaker(Protocol):
    """Streams of text to streams of frames.

    Attributes:
        needs_earlier: whether a run that goes on within a segment is faster with the segment's earlier frames.
    """

    needs_earlier: bool

    async def warm(self) -> None:
        """Speak once, so that the first request pays for no first use."""
        ...

    async def close(self) -> None:
        """Stop and free what is held."""
        ...

    def speak(
        self,
        pieces: AsyncIterator[str],
        options: SpeechOptions,
        *,
        reference: Reference | None = None,
        first_segment: int = 0,
        first_frame: int = 0,
        earlier: FrameArray | None = None,
        lenient: bool = False,
        reading: Reading = "stream",
    ) -> AsyncGenerator[SpokenFrames, None]:
        """Speak one request; see `SpeechEngine.speak` and `FrameEngine.speak`."""
        ...
