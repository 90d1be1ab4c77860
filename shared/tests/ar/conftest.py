"""A runner that keeps what it was told where the block tables say, and so finds every mistake of the policy."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest

from omnistage.ar.blocks import BlockManager
from omnistage.ar.runner import Emitted
from omnistage.ar.scheduler import Batch, Scheduler, SchedulerConfig

BLOCK_SIZE = 4


def next_token(context: list[Hashable]) -> int:
    """A function of the whole context, as a language model's choice is."""
    return int.from_bytes(hashlib.blake2b(repr(context).encode(), digest_size=2).digest(), "little") % 1000


@dataclass
class RecordingRunner:
    """Writes tokens into blocks and reads each row's context back through its block table."""

    memory: dict[tuple[int, int], Hashable] = field(default_factory=dict)
    batches: list[list[tuple[str, int, int]]] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    before_step: Callable[[Batch], None] | None = None
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def step(self, batch: Batch) -> list[Emitted]:
        assert self.gate.wait(30)
        if self.before_step is not None:
            self.before_step(batch)
        self.batches.append([(row.sequence.request_id, row.start, row.count) for row in batch.rows])
        emitted = []
        for row in batch.rows:
            sequence, end = row.sequence, row.start + row.count
            slots = [(sequence.block_table[p // BLOCK_SIZE], p % BLOCK_SIZE) for p in range(end)]
            self.memory.update(zip(slots[row.start :], sequence.tokens[row.start : end], strict=True))
        for row in batch.rows:
            sequence, end = row.sequence, row.start + row.count
            context = [self.memory[sequence.block_table[p // BLOCK_SIZE], p % BLOCK_SIZE] for p in range(end)]
            assert context == sequence.tokens[:end], "a row does not see its own tokens"
            if row.emits:
                emitted.append(Emitted(next_token(context)))
        return emitted

    def discard(self, blocks: list[int]) -> None:
        self.discarded += blocks


def answer(prompt: tuple[Hashable, ...], count: int) -> list[Hashable]:
    """What an undisturbed run generates."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context))
    return context[len(prompt) :]


@pytest.fixture
def runner() -> RecordingRunner:
    return RecordingRunner()


@pytest.fixture
def expected() -> Callable[[tuple[Hashable, ...], int], list[Hashable]]:
    return answer


@pytest.fixture
def make_scheduler() -> Callable[..., Scheduler]:
    def make(num_blocks: int = 64, *, prefix_cache: bool = True, **limits: int) -> Scheduler:
        limits.setdefault("max_length", num_blocks * BLOCK_SIZE)
        blocks = BlockManager(num_blocks, BLOCK_SIZE, prefix_cache=prefix_cache)
        return Scheduler(SchedulerConfig(**limits), blocks)

    return make
