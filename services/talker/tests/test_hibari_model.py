"""The packaged voice: equal to the package's own results, the same bits every time, robust against odd text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from omnistage.contracts import SpeechOptions
from omnistage.errors import ConfigError, InvalidRequest
from omnistage_talker.engine import SpeechEngine
from omnistage_talker.models import Clause, load_model
from omnistage_talker.models.base import SpeechModel
from omnistage_talker.models.hibari import layout
from omnistage_talker.models.hibari.pauses import fit_tail

pytestmark = pytest.mark.model

CHECKPOINT = Path(str(files("hibari") / "assets" / "hibari.onnx"))
HEART = SpeechOptions(voice="heart")


@pytest.fixture(scope="module", name="model")
def _model() -> SpeechModel:
    return load_model("hibari", CHECKPOINT)


async def pieces_of(text: str) -> AsyncIterator[str]:
    yield text


async def speak(model: SpeechModel, text: str, *, lenient: bool = False) -> tuple[list[str], bytes]:
    """Texts of the segments, and the bytes of all frames."""
    engine = SpeechEngine(model)
    try:
        chunks = [chunk async for chunk in engine.speak(pieces_of(text), HEART, lenient=lenient)]
    finally:
        await engine.close()
    return [chunk.text for chunk in chunks if chunk.text], b"".join(chunk.frames.tobytes() for chunk in chunks)


def test_frames_equal_the_packages(model: SpeechModel) -> None:
    text = "The quick brown fox jumps over the lazy dog at 10:30, doesn't it?"
    package = Hibari()
    feeds = {
        "ids": np.array([package.ids(package.g2p(text))], np.int64),
        "speed": np.array([1.0], np.float32),
    }
    *branches, f0 = package.sess.run(None, feeds)
    utterance = model.prepare(Clause(text=text), lenient=False)
    assert utterance is not None
    (frames,) = model.speak(utterance, SpeechOptions(voice="heart"), segment=0)
    assert frames.dtype == np.float32
    assert frames.flags.c_contiguous
    whole = np.empty((f0.shape[1], layout.WIDTH), np.float32)
    for name, branch in zip(layout.BRANCHES, branches, strict=True):
        whole[:, layout.columns(name)] = branch[0].T
    whole[:, layout.F0_COLUMN] = f0[0]
    (start,) = (at for at in range(len(whole)) if np.array_equal(whole[at : at + len(frames)], frames))
    voiced = np.flatnonzero(whole[:, layout.F0_COLUMN] > 40)
    assert start < voiced[0]
    assert voiced[-1] < start + len(frames)


@pytest.mark.parametrize("speed", [0.5, 0.6, 0.75, 0.9, 1.05, 1.1, 1.15])
def test_the_asked_pace_is_kept(model: SpeechModel, speed: float) -> None:
    lengths = []
    for text in (
        "The weather is nice today and we will go for a walk.",
        "I am looking for a good place to eat dinner.",
        "She sells flowers in the market every morning, doesn't she?",
        "Hi.",
        "Yes!",
        "Fish.",
        "Is it?",
    ):
        utterance = model.prepare(Clause(text=text), lenient=False)
        assert utterance is not None
        own, asked = (
            sum(len(part) for part in model.speak(utterance, SpeechOptions(voice="heart", speed=pace), segment=0))
            for pace in (1.0, speed)
        )
        lengths.append(asked * speed / own)
        assert lengths[-1] == pytest.approx(1, abs=0.03)
    assert sum(lengths) / len(lengths) == pytest.approx(1, abs=0.015)


def _frames(model: SpeechModel, clause: Clause, *, segment: int = 1, speed: float = 1.0) -> np.ndarray:
    utterance = model.prepare(clause, lenient=False)
    assert utterance is not None
    return np.concatenate(list(model.speak(utterance, SpeechOptions(voice="heart", speed=speed), segment=segment)))


def _silence(frames: np.ndarray) -> tuple[int, int]:
    """Frames before the first sound and after the last one."""
    noise = np.maximum(frames[:, layout.columns("ln")].max(axis=1), frames[:, layout.columns("lr")].max(axis=1))
    heard = np.flatnonzero((noise > -2) | (frames[:, layout.F0_COLUMN] > 40))
    return int(heard[0]), len(frames) - 1 - int(heard[-1])


def test_pauses_depend_on_the_place(model: SpeechModel) -> None:
    clause = Clause(text="We will go for a walk.")
    later = _frames(model, clause, segment=1)
    first = _frames(model, clause, segment=0)
    assert _silence(first) == (4, 18)
    assert _silence(later) == (18, 18)
    assert np.array_equal(first, later[14:])
    assert np.array_equal(later, _frames(model, clause, segment=7))
    lead, tail = _silence(_frames(model, clause, segment=0, speed=0.5))
    assert lead == 8
    assert 30 < tail < 42


def test_a_length_is_fitted_by_silence_alone() -> None:
    frames = np.full((10, layout.WIDTH), -9, np.float32)
    frames[2:5, layout.F0_COLUMN] = 200
    assert np.array_equal(fit_tail(frames, 9), frames[:9])
    assert np.array_equal(fit_tail(frames, 1), frames[:9])
    assert np.array_equal(fit_tail(frames[:6], 1), frames[:6])
    assert _silence(fit_tail(frames, 14)) == (2, 9)


def test_a_cut_sentence_has_no_gap(model: SpeechModel) -> None:
    whole = _frames(model, Clause(text="Once upon a time,"))
    end = _frames(model, Clause(text="Once upon a time,", sentence_end=False))
    start = _frames(model, Clause(text="Once upon a time,", sentence_start=False))
    assert _silence(whole) == (18, 18)
    assert _silence(end) == (18, 10)
    assert _silence(start) == (4, 18)
    assert np.array_equal(end, whole[: len(end)])
    assert np.array_equal(start, whole[len(whole) - len(start) :])


async def test_concurrent_runs_give_the_same_bits(model: SpeechModel) -> None:
    texts = ["One clause is here.", "Another one, somewhat longer, is there.", "And a third!"] * 3
    options = HEART

    def run(text: str) -> bytes:
        utterance = model.prepare(Clause(text=text), lenient=False)
        assert utterance is not None
        return b"".join(frames.tobytes() for frames in model.speak(utterance, options, segment=0))

    alone = [run(text) for text in texts]
    together = await asyncio.gather(*(asyncio.to_thread(run, text) for text in texts))
    assert together == alone
    assert len(set(alone)) == 3


async def test_each_sentence_is_a_segment(model: SpeechModel) -> None:
    texts, frames = await speak(model, "The capital of France is Paris. Dr. Smith paid $3.14. He left!")
    assert texts == ["The capital of France is Paris.", "Dr. Smith paid $3.14.", "He left!"]
    seconds = len(frames) / (4 * layout.WIDTH) / layout.FRAME_RATE_HZ
    assert 4.0 < seconds < 9.0


@pytest.mark.parametrize("text", ["", " \n ", "...", "?!", "$$$", "\U0001f600\U0001f389", "\x00\x01", "—", "()"])
async def test_nothing_speakable_is_refused(model: SpeechModel, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await speak(model, text)
    assert caught.value.param == "input"
    assert await speak(model, text, lenient=True) == ([], b"")


@pytest.mark.parametrize("text", ["привет мир", "你好", "مرحبا", "All is well. Then 你好 came."])
async def test_another_script_is_refused_without_quoting_it(model: SpeechModel, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await speak(model, text)
    assert caught.value.param == "input"
    position = next(number for number, character in enumerate(text, 1) if not character.isascii())
    assert f"character {position} " in caught.value.message
    assert caught.value.message.isascii()


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1000,
        "1" * 1000,
        "Wow" + "!" * 1000,
        "NASA AND THE FBI SAID SO",
        "http://www.example.com/a/b?c=d&e=f#g " * 3,
        "me@example.org, A/B, C++, a_b_c, 1,234.56, -5, 3-4, 1/2, 12/25/2024, 99:99, #1, 50%, $1.5M",
        "[word](/" + "a" * 600 + "/)",
        "tab\tand\x00null\x1band\u200bnothing\ufeff",
        "Hello \U0001f600 world ❤️",
        "Ｆｕｌｌ 𝐛𝐨𝐥𝐝 α Ω café Nguyễn",
        "supercalifragilisticexpialidocious" * 5,
        "5" * 25 + " and 1" + ",000" * 20,
        "%",
        "½",
    ],
)
async def test_odd_text_is_spoken(model: SpeechModel, text: str) -> None:
    texts, frames = await speak(model, text)
    assert texts
    assert np.isfinite(np.frombuffer(frames, np.float32)).all()
    assert len(frames) / (4 * layout.WIDTH) / layout.FRAME_RATE_HZ > 0.3


async def test_text_in_small_pieces_is_spoken_alike(model: SpeechModel) -> None:
    text = "Well... the answer, as I said, is 3.14! — Or is it?"

    async def letters() -> AsyncIterator[str]:
        for letter in text:
            yield letter

    engine = SpeechEngine(model)
    try:
        chunks = [chunk async for chunk in engine.speak(letters(), HEART)]
    finally:
        await engine.close()
    assert b"".join(chunk.frames.tobytes() for chunk in chunks) == (await speak(model, text))[1]


async def test_what_a_model_wrote_is_spoken_without_its_marks(model: SpeechModel) -> None:
    written = "## Answer\n\n**Paris** is the [capital](https://x.org/a_b). \U0001f600\n\n---\n\n- 你好 means hello."
    plain = "Answer\n\nParis is the capital.\n\nmeans hello."
    _, frames = await speak(model, written, lenient=True)
    assert frames == (await speak(model, plain))[1]


async def test_code_is_not_read_aloud_but_kept_in_the_text(model: SpeechModel) -> None:
    block = "```python\nfor x in range(10):\n    print(x)  # 你好. And more.\n```"
    texts, frames = await speak(model, f"Run this:\n{block}\nUse `x` then.", lenient=True)
    assert texts == ["Run this:", block, "Use `x` then."]
    assert frames == (await speak(model, "Run this:\n\nCode block.\n\nUse x then."))[1]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (SpeechOptions(voice="emma"), "voice"),
        (SpeechOptions(voice="heart", speed=0.49), "speed"),
        (SpeechOptions(voice="heart", speed=1.16), "speed"),
        (SpeechOptions(voice="heart", speed=float("nan")), "speed"),
        (SpeechOptions(voice="heart", instructions="whisper"), "instructions"),
        (SpeechOptions(voice="heart", language="de"), "language"),
    ],
)
def test_options_it_cannot_honour_are_refused(model: SpeechModel, options: SpeechOptions, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.check_options(options)
    assert caught.value.param == param


def test_options_it_can_honour(model: SpeechModel) -> None:
    for language in (None, "en", "en-US", "EN-gb"):
        model.check_options(SpeechOptions(voice="heart", speed=1.15, language=language))


def test_a_file_that_is_no_model_is_a_config_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    other = Path(str(files("hibari") / "assets" / "oov.onnx"))
    for path in (broken, tmp_path / "missing.onnx", other):
        with pytest.raises(ConfigError, match=path.name):
            load_model("hibari", path)
