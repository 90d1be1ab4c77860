"""What a family of speech generators is to the engine: text in, acoustic frames or codec tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from omnistage.contracts import SpeechOptions, SpeechTask

FrameArray = NDArray[Any]
"""[frames, width]: acoustic features (float32) or codec tokens (integers), as `SpeechFacts` says."""


@dataclass(frozen=True, kw_only=True)
class SpeechFacts:
    """What is fixed for a loaded model.

    Attributes:
        family: name of the family.
        layout: name of the layout of its frames; the codec's must be the same.
        frame_width: columns of a frame.
        frame_dtype: numpy's name of the frames' element type.
        frame_rate_hz: frames per second of sound.
        voices: the voices it speaks with; the first is the default.
        languages: BCP-47 tags.
        native_speed_range: lowest and highest `speed` that it speaks by itself.
        tasks: what may make its voice, if there is a choice at all.
        accepts: optional fields of speech requests that it honours.
    """

    family: str
    layout: str
    frame_width: int
    frame_dtype: str
    frame_rate_hz: float
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    native_speed_range: tuple[float, float]
    tasks: tuple[SpeechTask, ...] = ()
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """What a voice is cloned from; fields as in `omnistage.contracts.VoiceReference`.

    Attributes:
        codes: [frames, groups] codec tokens of the recording; None to take only the timbre.
        text: what the recording says.
        embedding: [width] float32 speaker embedding.
    """

    codes: NDArray[Any] | None = None
    text: str = ""
    embedding: NDArray[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A piece of text that is spoken as one segment.

    Attributes:
        text: as it was written.
        sentence_start: whether it begins a sentence; else it goes on with the clause before.
        sentence_end: whether it ends one; else the next clause goes on with it.
    """

    text: str
    sentence_start: bool = True
    sentence_end: bool = True


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A clause as the model reads it.

    Attributes:
        clause: what was written.
        units: the family's own units, e.g. phonemes or token ids.
    """

    clause: Clause
    units: tuple[Any, ...]


class SpeechModel(Protocol):
    """A family of speech generators.

    The frames of a clause are a function of the clause, its segment number and the options alone. All calls block;
    they may come from several threads at once.
    """

    @property
    def facts(self) -> SpeechFacts:
        """What is fixed for this model."""
        ...

    def check_options(self, options: SpeechOptions) -> None:
        """Refuse what this model cannot honour.

        Raises:
            InvalidRequest: naming the field.
        """
        ...

    def check_text(self, text: str) -> None:
        """Refuse a text in which something is written that the model cannot speak. Cheap.

        That nothing at all is to be spoken is not judged here but by `prepare`, clause by clause.

        Raises:
            InvalidRequest: on `input`, saying where and why but not quoting the text.
        """
        ...

    def prepare(self, clause: Clause, *, lenient: bool) -> Utterance | None:
        """The clause in the model's units; None if nothing of it is to be spoken.

        Args:
            clause: the clause.
            lenient: leave out marks of Markdown and whatever cannot be spoken, as in text that a model has written.
        """
        ...

    def speak(self, utterance: Utterance, options: SpeechOptions, *, segment: int) -> Iterator[FrameArray]:
        """The frames of a clause, in arrays of at least one frame, as they become known.

        Raises:
            StageFailed: the model could not run.
        """
        ...
