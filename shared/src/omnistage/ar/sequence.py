"""One request as the scheduler sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

Token = Hashable
"""What one position holds: a token id, or the tuple of codes of a frame. The policy only stores and compares it."""

FinishReason = Literal["stop", "length"]


class SequenceState(Enum):
    """Where a sequence stands. Only a running one holds blocks of the KV cache."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request: its tokens, and how much of them is in the KV cache.

    Attributes:
        request_id: the request.
        tokens: the prompt, then what was generated. Generation may start with a teacher-forced prefix.
        num_prompt: how many of `tokens` are the prompt; position 0 of the answer is `tokens[num_prompt]`.
        max_new_tokens: ceiling of generated tokens, the teacher-forced ones included.
        stop_tokens: tokens that end the answer (they are emitted, as the last one).
        due: when the reader runs dry, on the clock of the caller; the earliest is served first.
        cache_salt: sequences share cached prefixes only with equal salts; None keeps it out of the prefix cache.
        payload: what the runner needs beside the tokens (sampling parameters, embeddings); opaque to the policy.
        ready: whether everything is there that the step after `n` generated tokens reads (e.g. text that is still
            being written); None where nothing is waited for. Called in the engine's thread.
        state: see `SequenceState`.
        arrival: number in order of arrival; breaks ties of `due`.
        num_computed: how many leading tokens have their KV in the cache.
        num_cached: how many prompt tokens came from the prefix cache when it first ran.
        block_table: blocks that hold the KV, in order of position.
        digests: chained digests of the leading full blocks.
        num_remembered: how many leading blocks the prefix cache knows.
        held: its reader is behind or its input is late; the sequence keeps its blocks and is left out of batches.
    """

    request_id: str
    tokens: list[Token]
    num_prompt: int
    max_new_tokens: int
    stop_tokens: frozenset[Token] = frozenset()
    due: float = math.inf
    cache_salt: bytes | None = b""
    payload: Any = None
    ready: Callable[[int], bool] | None = None
    state: SequenceState = SequenceState.WAITING
    arrival: int = 0
    num_computed: int = 0
    num_cached: int = 0
    block_table: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_remembered: int = 0
    held: bool = False

    @property
    def num_generated(self) -> int:
        """How many tokens of the answer exist; also the position of the next one in the answer."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """How many tokens still lack their KV. One means that it decodes, more that it prefills."""
        return len(self.tokens) - self.num_computed
