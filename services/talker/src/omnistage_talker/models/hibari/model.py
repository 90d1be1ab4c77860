"""The talker family `hibari`: the English voice of the package hibari-tts, run with onnxruntime on the CPU.

Clauses are independent of one another, and the acoustic model draws no random numbers (the noise is the codec's), so
the seed plays no part here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

from omnistage.contracts import SpeechOptions
from omnistage.errors import ConfigError, InvalidRequest, StageFailed
from omnistage_talker.models.base import Clause, FrameArray, SpeechFacts, Utterance
from omnistage_talker.models.hibari import layout
from omnistage_talker.models.hibari.normalize import normalize
from omnistage_talker.models.hibari.pauses import Silence, fit_tail, shorten_pauses, silence_around
from omnistage_talker.models.hibari.phonemes import load_pronouncer, load_vocabulary, pronounce
from omnistage_talker.models.hibari.script import first_foreign, fold
from omnistage_talker.models.markdown import strip_markdown

FACTS = SpeechFacts(
    family="hibari",
    layout=layout.LAYOUT,
    frame_width=layout.WIDTH,
    frame_dtype="float32",
    frame_rate_hz=layout.FRAME_RATE_HZ,
    voices=("heart",),
    languages=("en-US", "en"),
    native_speed_range=(0.5, 1.15),
)

_STEP_FRAMES = 2
"""The model's durations are multiples of this."""

_PACE_TOLERANCE = 0.01
_PACE_RUNS = 6
_TOLD_RANGE = (0.3, 6.0)

_PAD = 0
_BRANCH_OUTPUTS = ("lh", "theta", "ln", "lr", "phi", "f0")


class HibariSpeech:
    """Implements `SpeechModel`."""

    def __init__(self, checkpoint: Path) -> None:
        """Load the acoustic model and the pronunciation rules.

        Raises:
            ConfigError: the file is missing or is no model of this family.
        """
        self._session = _load_session(checkpoint)
        self._rules = load_pronouncer()
        self._ids = load_vocabulary()

    @property
    def facts(self) -> SpeechFacts:
        return FACTS

    def check_options(self, options: SpeechOptions) -> None:
        if options.voice not in FACTS.voices:
            raise InvalidRequest(f"voice must be one of: {', '.join(FACTS.voices)}", param="voice")
        low, high = FACTS.native_speed_range
        if not low <= options.speed <= high:
            raise InvalidRequest(f"this voice speaks at speeds from {low} to {high}", param="speed")
        if options.instructions is not None:
            raise InvalidRequest("this voice takes no instructions", param="instructions")
        for name in ("task", "reference", "non_streaming_mode", "max_frames", "sampling"):
            if getattr(options, name) is not None:
                raise InvalidRequest(f"this voice has no option {name}", param=name)
        if options.language is not None and options.language.split("-")[0].lower() != "en":
            raise InvalidRequest("this voice speaks English only", param="language")

    def check_text(self, text: str) -> None:
        foreign = first_foreign(text)
        if foreign is not None:
            position, script = foreign
            raise InvalidRequest(
                f"the word at character {position + 1} is written in a script ({script}) that this voice cannot speak; "
                "it speaks English",
                param="input",
            )

    def prepare(self, clause: Clause, *, lenient: bool) -> Utterance | None:
        spoken = fold(strip_markdown(clause.text) if lenient else clause.text)
        phonemes = pronounce(self._rules, normalize(spoken))
        return Utterance(clause=clause, units=phonemes) if phonemes else None

    def speak(self, utterance: Utterance, options: SpeechOptions, *, segment: int) -> Iterator[FrameArray]:
        clause, last = utterance.clause, len(utterance.units) - 1
        for number, phonemes in enumerate(utterance.units):
            silence = silence_around(clause, phonemes, segment=segment, first=number == 0, last=number == last)
            yield self._paced(phonemes, silence, options.speed)

    def _paced(self, phonemes: str, silence: Silence, speed: float) -> FrameArray:
        """Frames that last 1/speed of the clause at its own pace, pauses included.

        The model rounds each sound's duration to steps of 25 ms, so that at other paces than its own it misses the
        asked one by up to 12 %. What it is told is therefore corrected by what it did, which takes a few runs, and
        what is then missing or left over at a sentence's end is silence. Around 1.3 many sounds fall by a step at
        once: durations of 1/1.18 to 1/1.44 do not exist, so the range ends before.
        """
        frames = shorten_pauses(self._run(phonemes, 1.0), silence)
        if speed == 1.0:
            return frames
        wanted = len(frames) / speed
        allowed = max(_STEP_FRAMES / 2, _PACE_TOLERANCE * wanted)
        told, best = speed, frames
        for _ in range(_PACE_RUNS):
            frames = shorten_pauses(self._run(phonemes, told), silence, speed=speed)
            if abs(len(frames) - wanted) < abs(len(best) - wanted):
                best = frames
            if abs(len(best) - wanted) <= allowed:
                break
            told = min(max(told * len(frames) / wanted, _TOLD_RANGE[0]), _TOLD_RANGE[1])
        return fit_tail(best, round(wanted)) if silence.sentence_end else best

    def _run(self, phonemes: str, speed: float) -> FrameArray:
        ids = [_PAD, *(self._ids[phoneme] for phoneme in phonemes if phoneme in self._ids), _PAD]
        feeds = {"ids": np.array([ids], np.int64), "speed": np.array([speed], np.float32)}
        try:
            outputs = self._session.run(_BRANCH_OUTPUTS, feeds)
        except Exception as error:
            # onnxruntime raises classes of its own that share no base but Exception.
            raise StageFailed(f"the acoustic model failed: {type(error).__name__}") from error
        *branches, f0 = outputs
        frames = np.empty((f0.shape[1], layout.WIDTH), np.float32)
        for name, branch in zip(layout.BRANCHES, branches, strict=True):
            frames[:, layout.columns(name)] = branch[0].T
        frames[:, layout.F0_COLUMN] = f0[0]
        return frames


def _load_session(checkpoint: Path) -> onnxruntime.InferenceSession:
    """A session that computes in the calling thread: results are then the same bits whatever else runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(checkpoint), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # As above: onnxruntime's errors share no other base.
        raise ConfigError(f"{checkpoint} cannot be loaded as an acoustic model: {error}") from error
    missing = set(_BRANCH_OUTPUTS) - {output.name for output in session.get_outputs()}
    if missing:
        raise ConfigError(
            f"{checkpoint} is no model of the family hibari: it has no output {', '.join(sorted(missing))}"
        )
    return session
