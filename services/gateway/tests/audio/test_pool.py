"""The pool closes what it opened, also when the caller is cancelled in the middle of a call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from omnistage_gateway.audio import FORMATS, EncoderPool, Transcoder


class SlowTranscoder(Transcoder):
    def __init__(self) -> None:
        super().__init__(FORMATS["wav"])
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.closed_after_call = False

    def feed(self, samples: Any, rate_hz: int) -> bytes:
        with self._lock:
            self.entered.set()
            self.leave.wait(10)
            return b"x"

    def close(self) -> None:
        super().close()
        self.closed_after_call = self.leave.is_set()


async def test_encodes_off_the_event_loop_and_closes() -> None:
    pool = EncoderPool()
    chain = Transcoder(FORMATS["flac"])
    async with pool.using(chain) as encoder:
        assert pool.open == 1
        data = await encoder.feed(np.zeros(4800, np.int16), 24_000) + await encoder.finish()
        assert data.startswith(b"fLaC")
        assert encoder.duration_s == 0.2
    pool.shutdown()
    assert pool.open == 0
    assert chain.feed(np.zeros(1, np.int16), 24_000) == b""


async def test_a_cancelled_call_is_waited_for_by_the_close_not_by_the_caller() -> None:
    pool = EncoderPool()
    chain = SlowTranscoder()

    async def use() -> None:
        async with pool.using(chain) as encoder:
            await encoder.feed(np.zeros(1, np.int16), 24_000)

    task = asyncio.ensure_future(use())
    await asyncio.to_thread(chain.entered.wait, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert pool.open == 1
    chain.leave.set()
    await asyncio.to_thread(pool.shutdown)
    assert pool.open == 0
    assert chain.closed_after_call


class ThreadOf(Transcoder):
    """Notes in which thread each call runs."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(FORMATS[name], **options)
        self.threads: list[int] = []

    def feed(self, samples: Any, rate_hz: int) -> bytes:
        self.threads.append(threading.get_ident())
        return super().feed(samples, rate_hz)


@pytest.mark.parametrize(
    ("name", "options", "inline"),
    [
        ("pcm", {}, True),
        ("wav", {}, True),
        ("mp3", {}, False),
        ("pcm", {"rate_hz": 16_000}, False),
        ("pcm", {"tempo": 1.5}, False),
    ],
)
async def test_only_what_is_merely_copied_stays_on_the_event_loop(
    name: str, options: dict[str, Any], inline: bool
) -> None:
    pool = EncoderPool()
    chain = ThreadOf(name, **options)
    async with pool.using(chain) as encoder:
        for _ in range(2):
            await encoder.feed(np.zeros(4800, np.int16), 24_000)
        await encoder.finish()
    pool.shutdown()
    assert chain.threads[0] != threading.get_ident()
    assert (chain.threads[1] == threading.get_ident()) is inline
