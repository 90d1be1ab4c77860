"""What a family that makes whole frames one after the other is to the engine, beside `base`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from omnistage.contracts import SpeechOptions
from omnistage_talker.models.base import Reference, SpeechFacts

if TYPE_CHECKING:  # whoever has no such model needs no torch
    from omnistage.ar.runner import Runner


class Utterance(Protocol):
    """A request's text and manner as the model reads it, built while the text arrives.

    Calls block for the time of a small product of matrices. One thread adds, the engine's reads.
    """

    @property
    def prompt_length(self) -> int | None:
        """Positions before the first frame; None while too little of the text is known to begin."""
        ...

    @property
    def text_tokens(self) -> int:
        """How long the text is so far."""
        ...

    def add(self, text: str) -> None:
        """More text, cut anywhere."""
        ...

    def finish(self) -> None:
        """The text is complete."""
        ...

    def ready(self, frames: int) -> bool:
        """Whether the text is there that the step after so many frames reads."""
        ...

    def payload(self, seed: int) -> Any:
        """What the runner needs, for frames drawn with a seed; not before there is a `prompt_length`."""
        ...


class FrameModel(Protocol):
    """A family of such models. A frame is a tuple of codes, and so is the end, which sounds no more."""

    @property
    def facts(self) -> SpeechFacts:
        """What is fixed for this model."""
        ...

    @property
    def end(self) -> tuple[int, ...]:
        """What is emitted in place of a frame after the last one."""
        ...

    @property
    def context(self) -> int:
        """Positions that prompt and frames may have together."""
        ...

    @property
    def max_frames(self) -> int:
        """Ceiling of an answer for which nobody asked for another."""
        ...

    def make_runner(self, num_blocks: int, block_tokens: int, *, batch_invariant: bool) -> Runner:
        """The model on a KV cache of so many blocks."""
        ...

    def check_options(self, options: SpeechOptions, reference: Reference | None) -> None:
        """Refuse what this model cannot honour.

        Raises:
            InvalidRequest: naming the field.
        """
        ...

    def begin(self, options: SpeechOptions, reference: Reference | None) -> Utterance:
        """An utterance without text yet, of options that were checked."""
        ...

    def example(self) -> tuple[SpeechOptions, Reference | None]:
        """Options with which the model speaks, for a first run."""
        ...
