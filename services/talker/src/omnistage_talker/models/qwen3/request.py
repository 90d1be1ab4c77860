"""What the talker knows of a request beside its frames."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from omnistage.ar.draw import Choice


class TextRows:
    """Embedded text, a row for each frame that is fed back; after its end the padding row, for ever.

    One thread adds, another reads.
    """

    def __init__(self, padding: Tensor) -> None:
        self._rows: list[Tensor] = []
        self._padding = padding
        self._closed = False

    def __len__(self) -> int:
        return len(self._rows)

    def extend(self, rows: Tensor) -> None:
        """Add rows ([n, width])."""
        self._rows.extend(rows.unbind())

    def close(self) -> None:
        """Nothing follows."""
        self._closed = True

    def row(self, index: int) -> Tensor:
        """The row that is added to frame `index`."""
        return self._rows[index] if index < len(self._rows) else self._padding

    def ready(self, generated: int) -> bool:
        """Whether the step after `generated` frames can be computed (see `omnistage.ar.sequence.Sequence.ready`)."""
        return self._closed or generated <= len(self._rows)


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """How a request's codes are chosen.

    Attributes:
        first: group 0.
        residual: the other groups.
        repetition_penalty: over the answer's codes of group 0 (Keskar et al., "CTRL", 2019).
        min_frames: as many frames there are at least.
    """

    first: Choice
    residual: Choice
    repetition_penalty: float = 1.05
    min_frames: int = 2


@dataclass(eq=False, slots=True)
class FrameRequest:
    """The payload of a sequence.

    Attributes:
        prefill: [prompt, width] embeddings of the prompt.
        text: what is added to the frames.
        sampling: see there.
        positions: [3, prompt] float32 of talkers that have three axes; None for those that have one.
        next_position: of the first frame, with three axes.
    """

    prefill: Tensor
    text: TextRows
    sampling: FrameSampling
    positions: Tensor | None = None
    next_position: float = 0.0
    _seen: set[int] = field(default_factory=set)
    _counted: int = 0

    def seen(self, frames: list[tuple[int, ...]]) -> set[int]:
        """The codes of group 0 in the answer so far; remembers what it has counted."""
        self._seen.update(frame[0] for frame in frames[self._counted :])
        self._counted = len(frames)
        return self._seen
