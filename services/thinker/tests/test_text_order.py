"""When a reader or a listener of a text runs dry, as the engine tells its core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from omnistage.contracts import GenerateText, SpeechOptions
from omnistage.urgency import READ_CHARS_PER_S, SPOKEN_CHARS_PER_S, Reading
from omnistage_thinker.engine import TextEngine, TextEngineSettings
from omnistage_thinker.models.checkpoint import Checkpoint

Work = Callable[..., GenerateText]
Read = Callable[..., Any]
NOW = 100.0


@pytest.fixture(name="engine")
async def _engine(checkpoint: Checkpoint) -> Any:
    engine = TextEngine(checkpoint, TextEngineSettings(), clock=lambda: NOW)
    yield engine
    await engine.close()


@pytest.fixture(name="dues")
def _dues(engine: TextEngine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the core is told, in order."""
    told: list[float] = []
    monkeypatch.setattr(engine._core, "set_due", lambda request_id, due: told.append(due))
    return told


@pytest.mark.parametrize(
    ("speech", "chars_per_s"), [(None, READ_CHARS_PER_S), (SpeechOptions(voice="heart"), SPOKEN_CHARS_PER_S)]
)
async def test_a_stream_runs_dry_when_its_text_is_read_or_spoken(
    engine: TextEngine,
    make_work: Work,
    read: Read,
    dues: list[float],
    speech: SpeechOptions | None,
    chars_per_s: float,
) -> None:
    work = msgspec.structs.replace(make_work("Tell me a story.", max_tokens=12), speech=speech)
    result = await read(engine, work)
    lengths = [len(piece.text) for piece in result.pieces]
    expected = [NOW + sum(lengths[: number + 1]) / chars_per_s for number in range(len(lengths))]
    assert dues == pytest.approx(expected[: len(dues)])
    assert len(dues) >= len(lengths) - 1, "a last piece may come after the core is through"


@pytest.mark.parametrize(("reading", "patience_s"), [("whole", 4.0), ("batch", 30.0)])
async def test_others_get_their_patience_anew_with_each_token(
    engine: TextEngine, make_work: Work, read: Read, dues: list[float], reading: Reading, patience_s: float
) -> None:
    await read(engine, make_work("Tell me a story.", max_tokens=6), reading=reading)
    assert set(dues) == {NOW + patience_s}


async def test_the_reader_in_a_hurry_gets_the_slot(checkpoint: Checkpoint, make_work: Work, read: Read) -> None:
    engine = TextEngine(checkpoint, replace(TextEngineSettings(), slots=1), clock=lambda: NOW)
    order: list[str] = []

    async def ask(name: str, reading: Reading, tokens: int = 2) -> None:
        work = msgspec.structs.replace(make_work("Tell me a story.", max_tokens=tokens), request_id=name)
        await read(engine, work, reading=reading)
        order.append(name)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask("first", "stream", 24))
            async with asyncio.timeout(30):
                while engine.facts()["running"] == 0:
                    await asyncio.sleep(0.001)
            group.create_task(ask("batch", "batch"))
            group.create_task(ask("whole", "whole"))
            group.create_task(ask("stream", "stream"))
    finally:
        await engine.close()
    assert order == ["first", "stream", "whole", "batch"]
