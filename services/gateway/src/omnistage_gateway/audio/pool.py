"""Encoding off the event loop: a few threads for all requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager

import structlog

from omnistage_gateway.audio.encoder import Samples
from omnistage_gateway.audio.transcode import Transcoder

_log = structlog.get_logger("omnistage_gateway.audio")


class PooledTranscoder:
    """A transcoder whose calls run in the pool. One call at a time."""

    def __init__(self, transcoder: Transcoder, threads: ThreadPoolExecutor) -> None:
        self._transcoder = transcoder
        self._threads = threads

    @property
    def duration_s(self) -> float:
        """Seconds of audio given so far."""
        return self._transcoder.duration_s

    @property
    def given_s(self) -> float:
        """See `Transcoder.given_s`."""
        return self._transcoder.given_s

    @property
    def begun(self) -> bool:
        """Whether any samples were fed."""
        return self._transcoder.begun

    async def feed(self, samples: Samples, rate_hz: int) -> bytes:
        """See `Transcoder.feed`. Raw samples are copied at once: a thread would cost more than the copy."""
        if self._transcoder.copies_only:
            return self._transcoder.feed(samples, rate_hz)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._transcoder.feed, samples, rate_hz)

    async def finish(self) -> bytes:
        """See `Transcoder.finish`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._transcoder.finish)


class EncoderPool:
    """The threads in which all requests encode.

    Attributes:
        open: transcoders that have not been closed yet.
    """

    def __init__(self, threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="encode")
        self._lock = threading.Lock()
        self.open = 0

    @asynccontextmanager
    async def using(self, transcoder: Transcoder) -> AsyncIterator[PooledTranscoder]:
        """Run a transcoder in the pool; it is closed on the way out, even while a cancelled call still runs."""
        self._count(1)
        try:
            yield PooledTranscoder(transcoder, self._threads)
        finally:
            # Not awaited: the context may be left by a cancellation, and closing waits only for a call under way.
            closing = self._threads.submit(transcoder.close)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: Future[None]) -> None:
        self._count(-1)
        error = closing.exception()
        if error is not None:
            _log.warning("encoder_close_failed", error=type(error).__name__)

    def _count(self, change: int) -> None:
        with self._lock:
            self.open += change

    def shutdown(self) -> None:
        """Wait for what is under way, then end the threads."""
        self._threads.shutdown(wait=True)
