"""More streams than the engine can speak at once: the one with the least in hand goes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from omnistage.contracts import SpeechOptions
from omnistage.testing.stepped_turns import HandClock, SteppedTurns
from omnistage.urgency import Reading
from omnistage_talker.engine import GroupSizes, SpeechConfig, SpeechEngine
from omnistage_talker.models import Clause, SpeechFacts, Utterance
from omnistage_talker.models.base import FrameArray

OPTIONS = SpeechOptions(voice="test")
SHORT, LONG = "Yes, of course. ", "This is a sentence that is quite a bit longer than the others are. "
TURNS = 4
"""A piece of one clause takes as many: checking, preparing, the frames, and finding that there are no more."""


class Letters:
    """Each clause at once, one frame of a tenth of a second for each character."""

    facts = SpeechFacts(
        family="letters",
        layout="letters-v1",
        frame_width=1,
        frame_dtype="float32",
        frame_rate_hz=10.0,
        voices=("test",),
        languages=("en",),
        native_speed_range=(1.0, 1.0),
    )

    def check_options(self, options: SpeechOptions) -> None:
        """Anything goes."""

    def check_text(self, text: str) -> None:
        """Anything goes."""

    def prepare(self, clause: Clause, *, lenient: bool) -> Utterance | None:
        return Utterance(clause=clause, units=tuple(clause.text))

    def speak(self, utterance: Utterance, options: SpeechOptions, *, segment: int) -> Iterator[FrameArray]:
        yield np.zeros((len(utterance.units), 1), np.float32)


class Rig:
    def __init__(self, engine: SpeechEngine, turns: SteppedTurns) -> None:
        self.engine = engine
        self.turns = turns
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, sentence: str, reading: Reading = "stream", first_segment: int = 0) -> None:
        """One more request that says this for ever; it waits for a turn on return."""
        self.tasks.append(asyncio.ensure_future(self._listen(sentence, reading, first_segment)))
        await self.turns.joined(len(self.tasks))

    async def _listen(self, sentence: str, reading: Reading, first_segment: int) -> None:
        spoken = self.engine.speak(endless(sentence), OPTIONS, reading=reading, first_segment=first_segment)
        async for _ in spoken:
            pass

    async def served(self, turns: int, takes_s: float = 0.1) -> str:
        """The next so many turns: "a" for the first request, "b" for the second, …"""
        waiting = len(self.tasks)
        numbers = [await self.turns.step(waiting=waiting, takes_s=takes_s) for _ in range(turns)]
        return "".join("abcdefgh"[number] for number in numbers)


async def endless(sentence: str) -> AsyncIterator[str]:
    while True:
        yield sentence


@asynccontextmanager
async def rigged(monkeypatch: pytest.MonkeyPatch, *, by_deadline: bool = True) -> AsyncGenerator[Rig, None]:
    made: list[SteppedTurns] = []

    def make(threads: int, **options: Any) -> SteppedTurns:
        made.append(SteppedTurns(threads, **options))
        return made[-1]

    monkeypatch.setattr("omnistage_talker.engine.engine.Turns", make)
    config = SpeechConfig(groups=GroupSizes(first_frames=200, factor=1.0, max_frames=200), by_deadline=by_deadline)
    engine = SpeechEngine(Letters(), config, clock=HandClock())
    rig = Rig(engine, made[0])
    try:
        yield rig
    finally:
        for task in rig.tasks:
            task.cancel()
        rig.turns.let_all()
        await asyncio.wait(rig.tasks)
        await engine.close()


@pytest.mark.parametrize(("by_deadline", "order"), [(True, "bbbbbbbb"), (False, "abababab")])
async def test_a_new_stream_passes_one_that_has_enough(
    monkeypatch: pytest.MonkeyPatch, by_deadline: bool, order: str
) -> None:
    async with rigged(monkeypatch, by_deadline=by_deadline) as rig:
        await rig.begin(LONG)
        assert await rig.served(2 * TURNS) == "a" * 2 * TURNS
        await rig.begin(SHORT)
        assert await rig.served(8) == order


async def test_who_has_the_least_in_hand_is_served_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rigged(monkeypatch) as rig:
        await rig.begin(LONG)
        await rig.begin(SHORT)
        order = await rig.served(60)
    # a gets 6.6 s with a sentence, b 1.5 s: while a plays one, b is served four or five times.
    assert 3.5 <= order.count("b") / order.count("a") <= 5.5


async def test_one_that_changed_hands_counts_as_dry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rigged(monkeypatch) as rig:
        await rig.begin(SHORT)
        await rig.begin(SHORT, first_segment=1)
        assert await rig.served(1) == "b"


async def test_answers_in_one_piece_wait_for_streams_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rigged(monkeypatch) as rig:
        await rig.begin(SHORT)
        await rig.begin(SHORT, "whole")
        order = await rig.served(200, takes_s=0.5)
    assert "b" not in order[:5]
    assert 10 <= order.count("b") <= 100, "a takes more than there is, b gets its turns nevertheless"
