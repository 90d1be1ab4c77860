"""The engine over a small model: order, chunks, leniency, resumption, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from omnistage.contracts import SpeechOptions
from omnistage.errors import ConfigError, InvalidRequest, StageFailed
from omnistage.pacing import Pacer
from omnistage_talker.engine import ClauseLimits, GroupSizes, SpeechConfig, SpeechEngine, SpokenFrames
from omnistage_talker.engine.groups import FrameGrouper
from omnistage_talker.models import Clause, SpeechFacts, Utterance, load_model
from omnistage_talker.models.base import FrameArray

OPTIONS = SpeechOptions(voice="test")
CONFIG = SpeechConfig(groups=GroupSizes(first_frames=4, factor=2.0, max_frames=8), clauses=ClauseLimits(max_chars=80))
TEXT = "First clause here. Second one! And the third, which is a little longer than the others? Last."


class LetterModel:
    """One frame for each letter, in arrays of three; each frame holds the letter's code and the segment."""

    facts = SpeechFacts(
        family="letters",
        layout="letters-v1",
        frame_width=2,
        frame_dtype="float32",
        frame_rate_hz=10.0,
        voices=("test",),
        languages=("en",),
        native_speed_range=(1.0, 1.0),
    )

    def __init__(self) -> None:
        self.spoken: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def check_options(self, options: SpeechOptions) -> None:
        if options.voice != "test":
            raise InvalidRequest("no such voice", param="voice")

    def check_text(self, text: str) -> None:
        if "#" in text:
            raise InvalidRequest("a sign that cannot be spoken", param="input")

    def prepare(self, clause: Clause, *, lenient: bool) -> Utterance | None:
        letters = tuple(character for character in clause.text if character.isalpha())
        return Utterance(clause=clause, units=letters) if letters else None

    def speak(self, utterance: Utterance, options: SpeechOptions, *, segment: int) -> Iterator[FrameArray]:
        self.spoken.append(utterance.clause.text)
        for start in range(0, len(utterance.units), 3):
            self.go_on.wait(10)
            letters = utterance.units[start : start + 3]
            yield np.array([[ord(letter), segment] for letter in letters], np.float32)


@pytest.fixture(name="model")
def _model() -> LetterModel:
    return LetterModel()


@pytest.fixture(name="engine")
async def _engine(model: LetterModel) -> AsyncIterator[SpeechEngine]:
    engine = SpeechEngine(model, CONFIG)
    yield engine
    await engine.close()


async def pieces_of(text: str, size: int = 1000) -> AsyncIterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]
        await asyncio.sleep(0)


async def collect(chunks: AsyncIterator[SpokenFrames]) -> list[SpokenFrames]:
    return [chunk async for chunk in chunks]


def fingerprint(chunks: list[SpokenFrames]) -> list[tuple[object, ...]]:
    return [
        (chunk.segment, chunk.segment_frame, chunk.segment_end, chunk.text, chunk.frames.tobytes()) for chunk in chunks
    ]


def letters(chunks: list[SpokenFrames]) -> str:
    return "".join(chr(int(code)) for chunk in chunks for code in chunk.frames[:, 0])


async def test_segments_follow_one_another_and_end_explicitly(engine: SpeechEngine) -> None:
    chunks = await collect(engine.speak(pieces_of(TEXT), OPTIONS))
    assert letters(chunks) == "".join(character for character in TEXT if character.isalpha())
    assert [chunk.text for chunk in chunks if chunk.text] == [
        "First clause here.",
        "Second one!",
        "And the third, which is a little longer than the others?",
        "Last.",
    ]
    expected_frame: dict[int, int] = {}
    for chunk in chunks:
        assert chunk.segment_frame == expected_frame.get(chunk.segment, 0)
        assert bool(chunk.text) == (chunk.segment_frame == 0)
        assert len(chunk.frames)
        assert {int(number) for number in chunk.frames[:, 1]} == {chunk.segment}
        expected_frame[chunk.segment] = chunk.segment_frame + len(chunk.frames)
    assert [chunk.segment for chunk in chunks if chunk.segment_end] == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 2, 7, 40])
async def test_chunks_do_not_depend_on_the_pieces(engine: SpeechEngine, size: int) -> None:
    whole = await collect(engine.speak(pieces_of(TEXT), OPTIONS))
    assert fingerprint(await collect(engine.speak(pieces_of(TEXT, size), OPTIONS))) == fingerprint(whole)


async def test_the_first_chunk_is_small_and_the_others_grow(engine: SpeechEngine) -> None:
    chunks = await collect(engine.speak(pieces_of("a" * 40), OPTIONS))
    assert [len(chunk.frames) for chunk in chunks] == [4, 8, 8, 8, 8, 4]


@pytest.mark.parametrize("first_segment", [1, 2, 3, 4])
async def test_goes_on_at_a_segment(engine: SpeechEngine, model: LetterModel, first_segment: int) -> None:
    whole = await collect(engine.speak(pieces_of(TEXT), OPTIONS))
    model.spoken.clear()
    rest = await collect(engine.speak(pieces_of(TEXT, 3), OPTIONS, first_segment=first_segment))
    assert fingerprint(rest) == fingerprint([chunk for chunk in whole if chunk.segment >= first_segment])
    assert len(model.spoken) == 4 - first_segment


async def test_a_clause_with_nothing_to_say_has_no_number(engine: SpeechEngine) -> None:
    chunks = await collect(engine.speak(pieces_of("One.\n\n1234.\n\nTwo."), OPTIONS))
    assert [(chunk.segment, chunk.text) for chunk in chunks] == [(0, "One."), (1, "Two.")]


@pytest.mark.parametrize("text", ["", "   ", "12 34.", "?!"])
async def test_nothing_to_say_is_an_error_unless_lenient(engine: SpeechEngine, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await collect(engine.speak(pieces_of(text), OPTIONS))
    assert caught.value.param == "input"
    assert await collect(engine.speak(pieces_of(text), OPTIONS, lenient=True)) == []


async def test_a_text_is_checked_before_it_sounds(engine: SpeechEngine, model: LetterModel) -> None:
    with pytest.raises(InvalidRequest):
        await collect(engine.speak(pieces_of("Good. Good. Bad #."), OPTIONS))
    assert model.spoken == []
    assert len(await collect(engine.speak(pieces_of("Good. Bad #."), OPTIONS, lenient=True))) == 2


async def test_options_are_checked(engine: SpeechEngine) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await collect(engine.speak(pieces_of("Hi."), SpeechOptions(voice="nobody")))
    assert caught.value.param == "voice"


async def test_speech_begins_before_the_text_ends(engine: SpeechEngine) -> None:
    async def slow() -> AsyncIterator[str]:
        yield "The first is here. The"
        await asyncio.Event().wait()

    async with aclosing(engine.speak(slow(), OPTIONS)) as chunks:
        first = await anext(chunks)
    assert first.text == "The first is here."


async def test_cancelling_stops_between_runs(engine: SpeechEngine, model: LetterModel) -> None:
    model.go_on.clear()
    task = asyncio.ensure_future(collect(engine.speak(pieces_of(TEXT), OPTIONS)))
    while not model.spoken:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.go_on.set()
    chunks = await collect(engine.speak(pieces_of("Again."), OPTIONS))
    assert letters(chunks) == "Again"
    assert model.spoken == ["First clause here.", "Again."]


async def test_many_at_once_equal_each_alone(engine: SpeechEngine) -> None:
    texts = [f"{'word ' * number}end. Then {'more ' * number}came. " * 3 for number in range(1, 9)]
    alone = [fingerprint(await collect(engine.speak(pieces_of(text), OPTIONS))) for text in texts]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(collect(engine.speak(pieces_of(text, 2), OPTIONS))) for text in texts]
    assert [fingerprint(task.result()) for task in tasks] == alone


async def test_a_model_without_frames_fails(engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LetterModel, "speak", lambda self, utterance, options, *, segment: iter(()))
    with pytest.raises(StageFailed, match="no frames"):
        await collect(engine.speak(pieces_of("Hi."), OPTIONS))


async def test_warm_and_facts(engine: SpeechEngine, model: LetterModel) -> None:
    await engine.warm()
    assert model.spoken == ["Ready."]
    assert engine.facts() is LetterModel.facts
    assert engine.slots == 8


def test_grouping_depends_on_the_frames_alone() -> None:
    frames = np.arange(200, dtype=np.float32)[:, None]
    sizes = GroupSizes(first_frames=16, factor=2.0, max_frames=64)

    def groups(step: int) -> list[list[float]]:
        grouper = FrameGrouper(sizes)
        parts = [part for start in range(0, 200, step) for part in grouper.push(frames[start : start + step])]
        rest = grouper.finish()
        assert rest is not None
        return [part[:, 0].tolist() for part in [*parts, rest]]

    assert [len(group) for group in groups(200)] == [16, 32, 64, 64, 24]
    assert groups(1) == groups(7) == groups(200)
    assert FrameGrouper(sizes).finish() is None


def test_unknown_family_is_a_config_error(tmp_path: object) -> None:
    from pathlib import Path

    with pytest.raises(ConfigError, match="hibari"):
        load_model("nothing", Path(str(tmp_path)))


async def test_a_pace_delays_all_but_the_first_frames_and_changes_none(
    model: LetterModel, engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpaced = await collect(engine.speak(pieces_of(TEXT), OPTIONS))
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("omnistage_talker.engine.engine.Pacer", partial(Pacer, clock=lambda: sum(waits), sleep=sleep))
    paced = SpeechEngine(model, replace(CONFIG, pace=2.0))
    try:
        chunks = await collect(paced.speak(pieces_of(TEXT), OPTIONS))
    finally:
        await paced.close()
    assert fingerprint(chunks) == fingerprint(unpaced)
    assert waits == pytest.approx([len(chunk.frames) / (2.0 * model.facts.frame_rate_hz) for chunk in chunks[:-1]])


async def test_what_was_sent_before_is_neither_given_again_nor_waited_for(
    model: LetterModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("omnistage_talker.engine.engine.Pacer", partial(Pacer, clock=lambda: sum(waits), sleep=sleep))
    paced = SpeechEngine(model, replace(CONFIG, pace=2.0))
    try:
        chunks = await collect(paced.speak(pieces_of(TEXT), OPTIONS))
        after = next(at for at, chunk in enumerate(chunks) if chunk.segment == 2 and chunk.segment_frame)
        waits.clear()
        first = chunks[after]
        rest = await collect(paced.speak(pieces_of(TEXT), OPTIONS, first_segment=2, first_frame=first.segment_frame))
    finally:
        await paced.close()
    assert fingerprint(rest) == fingerprint(chunks[after:])
    assert len(waits) == len(rest) - 1
