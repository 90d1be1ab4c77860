"""What a caller asks the engine for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omnistage.ar.sequence import Token


@dataclass(frozen=True, slots=True)
class ARRequest:
    """What to generate.

    Attributes:
        request_id: unique among the requests that the engine holds.
        prompt: tokens to read.
        max_new_tokens: ceiling of the answer, `emitted` included.
        payload: for the runner, e.g. `SamplingParams`.
        emitted: tokens of the answer that exist already; generation goes on after them, with the random numbers of
            their positions, so that the whole equals an undisturbed run.
        stop_tokens: tokens that end the answer.
        due: see `Sequence.due`.
        cache_salt: see `Sequence.cache_salt`.
        ready: see `Sequence.ready`; after it has changed, `AREngine.wake` makes the engine look.
    """

    request_id: str
    prompt: tuple[Token, ...]
    max_new_tokens: int
    payload: Any = None
    emitted: tuple[Token, ...] = ()
    stop_tokens: frozenset[Token] = frozenset()
    due: float = math.inf
    cache_salt: bytes | None = b""
    ready: Callable[[int], bool] | None = None
