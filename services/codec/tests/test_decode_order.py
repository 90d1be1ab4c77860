"""More streams than the engine can serve at once: the one with the least in hand goes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnistage.testing.stepped_turns import HandClock, SteppedTurns
from omnistage.urgency import Reading
from omnistage_codec.engine import DecodeConfig, DecodeEngine, Frames, GrowthPolicy
from omnistage_codec.models.base import FrameArray, WaveFacts

RATE_HZ = 10
"""Frames and samples of the model below, per second: one sample for each frame."""


class Counting:
    """Gives as many samples as it gets frames."""

    facts = WaveFacts(
        family="counting",
        layout="counting-v1",
        frame_width=1,
        frame_dtype="float32",
        frame_rate_hz=RATE_HZ,
        sample_rate_hz=RATE_HZ,
        samples_per_frame=1,
        lookahead_frames=0,
    )

    def new_state(self, *, seed: int, voice: str, context: FrameArray | None = None) -> None:
        return None

    def decode(
        self, state: None, frames: FrameArray, *, segment: int, segment_frame: int, segment_end: bool
    ) -> NDArray[np.float32]:
        return np.zeros(len(frames), np.float32)


class Rig:
    def __init__(self, engine: DecodeEngine, turns: SteppedTurns, clock: HandClock) -> None:
        self.engine = engine
        self.turns = turns
        self.clock = clock
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, chunk_s: float, reading: Reading = "stream", skip_samples: int = 0) -> None:
        """One more request, whose frames are all there, in chunks of this length; it waits for a turn on return."""
        self.tasks.append(asyncio.ensure_future(self._listen(chunk_s, reading, skip_samples)))
        await self.turns.joined(len(self.tasks))

    async def _listen(self, chunk_s: float, reading: Reading, skip_samples: int) -> None:
        pieces = self.engine.decode(endless(chunk_s), seed=0, reading=reading, skip_samples=skip_samples)
        async for _ in pieces:
            pass

    async def served(self, turns: int, takes_s: float = 0.5) -> str:
        """The next so many turns: "a" for the first request, "b" for the second, …"""
        waiting = len(self.tasks)
        numbers = [await self.turns.step(waiting=waiting, takes_s=takes_s) for _ in range(turns)]
        return "".join("abcdefgh"[number] for number in numbers)


async def endless(chunk_s: float) -> AsyncIterator[Frames]:
    frames = np.zeros((round(chunk_s * RATE_HZ), 1), np.float32)
    segment = 0
    while True:
        yield Frames(frames=frames, segment=segment, segment_frame=0, segment_end=True)
        segment += 1


@asynccontextmanager
async def rigged(monkeypatch: pytest.MonkeyPatch, *, by_deadline: bool) -> AsyncGenerator[Rig, None]:
    made: list[SteppedTurns] = []

    def make(threads: int, **options: Any) -> SteppedTurns:
        made.append(SteppedTurns(threads, **options))
        return made[-1]

    monkeypatch.setattr("omnistage_codec.engine.engine.Turns", make)
    clock = HandClock()
    config = DecodeConfig(
        growth=GrowthPolicy(first_frames=1, factor=1.0, max_frames=1), by_deadline=by_deadline, read_ahead_chunks=4
    )
    engine = DecodeEngine(Counting(), config, clock=clock)
    rig = Rig(engine, made[0], clock)
    try:
        yield rig
    finally:
        for task in rig.tasks:
            task.cancel()
        rig.turns.let_all()
        await asyncio.wait(rig.tasks)
        await engine.close()


@pytest.fixture(name="rig")
async def _rig(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Rig, None]:
    async with rigged(monkeypatch, by_deadline=True) as rig:
        yield rig


@pytest.mark.parametrize(("by_deadline", "order"), [(True, "abcbbcbbcbbcbbcba"), (False, "abcabcabcabcabcab")])
async def test_who_has_the_least_in_hand_is_served_first(
    monkeypatch: pytest.MonkeyPatch, by_deadline: bool, order: str
) -> None:
    # a gets 10 s with a turn, b 1 s, c 2 s, and a turn takes 0.5 s.
    async with rigged(monkeypatch, by_deadline=by_deadline) as rig:
        for chunk_s in (10.0, 1.0, 2.0):
            await rig.begin(chunk_s)
        assert await rig.served(len(order)) == order


async def test_a_new_stream_passes_those_that_have_enough(rig: Rig) -> None:
    for chunk_s in (10.0, 20.0):
        await rig.begin(chunk_s)
    assert await rig.served(2) == "ab"
    await rig.begin(1.0)
    assert await rig.served(4) == "cccc"


async def test_one_that_changed_hands_counts_as_dry(rig: Rig) -> None:
    for _ in range(3):
        await rig.begin(1.0)
    await rig.begin(1.0, skip_samples=5)
    assert (await rig.served(4, takes_s=0.01)) == "dabc"


async def test_answers_in_one_piece_wait_for_streams_but_not_for_ever(rig: Rig) -> None:
    await rig.begin(1.0)
    await rig.begin(1.0)
    await rig.begin(1.0, "whole")
    await rig.begin(1.0, "batch")
    order = await rig.served(120)
    assert "c" not in order[:7]
    assert "d" not in order[:50]
    # Patience of 4 s is 8 turns of 0.5 s, of 30 s 60 turns.
    assert 11 <= order.count("c") <= 15
    assert 1 <= order.count("d") <= 2
