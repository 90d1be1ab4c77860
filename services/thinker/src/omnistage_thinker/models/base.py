"""What a model is to the text engine: a conversation's tokens in, a runner of steps, rows for a talker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnistage.ar.runner import Runner
from omnistage.ar.sampling import SamplingParams
from omnistage.ar.sequence import Token
from omnistage.contracts import MediaGrid

Rows = NDArray[np.float32]
"""[tokens, width]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptRows:
    """What a talker takes of a prompt.

    Attributes:
        token_ids: of the prompt.
        embeds: [tokens, width], layer 0, media in their places.
        hidden: [tokens, width], of the layer that the talker takes; None where it takes none.
        marks: [3, width], the embeddings of the tokens that begin, end and pad speech.
        media: pictures and videos of the prompt, in order.
    """

    token_ids: tuple[int, ...]
    embeds: Rows
    hidden: Rows | None
    marks: Rows
    media: tuple[MediaGrid, ...] = ()


class Spoken(Protocol):
    """What a talker takes of a prompt, as far as it is known."""

    @property
    def needs_hidden(self) -> bool:
        """Whether `rows` are complete only when a runner has read the prompt, with a payload of `heard`."""
        ...

    def heard(self, sampling: SamplingParams) -> Any:
        """A payload that keeps the prompt's hidden states. Its sequence must stay out of the prefix cache."""
        ...

    def rows(self) -> PromptRows:
        """The rows; `hidden` are those of the last payload of `heard`, None without one."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A prompt as the model reads it.

    Attributes:
        tokens: one for each position. Positions of media hold more than an id, so that the prefix cache tells different
            media apart.
        payload: makes what the runner needs to answer it.
        spoken: what a talker takes of it; None of models without one.
    """

    tokens: tuple[Token, ...]
    payload: Callable[[SamplingParams], Any]
    spoken: Spoken | None = None


class TextModel(Protocol):
    """A language model on the AR core.

    Attributes:
        max_length: positions that it was made for.
        word_rows: makes [tokens, width] layer-0 embeddings of tokens of an answer, for a talker of its own family; None
            of models without one.
    """

    max_length: int

    @property
    def word_rows(self) -> Callable[[Sequence[int]], Rows] | None: ...

    def make_runner(self, num_blocks: int, block_tokens: int, *, batch_invariant: bool) -> Runner:
        """The model on a KV cache of so many blocks. Raises ValueError for sizes that cannot be."""
        ...

    def prepare(self, ids: Sequence[int]) -> Prepared:
        """A prompt of text alone; blocking.

        Raises:
            InvalidRequest: it holds tokens that are no text.
        """
        ...


def as_it_is(sampling: SamplingParams) -> SamplingParams:
    """The payload of models that read token ids."""
    return sampling
