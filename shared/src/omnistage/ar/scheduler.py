"""What runs in the next step. The whole policy of the AR core: pure Python, no torch, no clock, no I/O.

A step is a mixed batch: one row for each sequence that decodes, and chunks of prompts under a token budget. Order is
by `due`, the earliest first. A sequence takes all blocks of its known tokens when it is admitted; while it decodes it
takes one more now and then, and where none is left the last in order is preempted: it loses its blocks and later
computes its tokens anew, which changes nothing of its result.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from omnistage.ar.blocks import BlockManager, chain_digest
from omnistage.ar.sequence import FinishReason, Sequence, SequenceState, Token


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step.

    Attributes:
        max_running: slots, i.e. sequences that hold KV at once.
        max_batch_tokens: prompt tokens in a step in which nothing decodes.
        max_chunk_tokens: prompt tokens in a step in which something decodes; bounds the pause of running streams.
        max_length: tokens of a sequence, prompt and answer; where they are reached it ends with "length".
    """

    max_running: int = 8
    max_batch_tokens: int = 256
    max_chunk_tokens: int = 64
    max_length: int = 2048

    def __post_init__(self) -> None:
        if min(self.max_running, self.max_batch_tokens, self.max_chunk_tokens) < 1 or self.max_length < 2:
            raise ValueError("every limit of a step must be positive")


@dataclass(frozen=True, slots=True)
class Row:
    """A run of tokens of one sequence: positions `start` to `start + count`; the last one emits if `emits`."""

    sequence: Sequence
    start: int
    count: int
    emits: bool


@dataclass(slots=True)
class Batch:
    """The rows of one step: first those that decode, then chunks of prompts."""

    rows: list[Row] = field(default_factory=list)
    num_decodes: int = 0
    num_tokens: int = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """Append the next `count` pending tokens of a sequence."""
        self.rows.append(Row(sequence, sequence.num_computed, count, count == sequence.num_pending))
        self.num_tokens += count

    @property
    def emitting(self) -> list[Row]:
        """The rows that emit a token, in order."""
        return [row for row in self.rows if row.emits]


def _order(sequence: Sequence) -> tuple[float, int]:
    return (sequence.due, sequence.arrival)


class Scheduler:
    """Holds the waiting and the running sequences and says what the next step computes.

    Raises:
        ValueError: the pool cannot hold one sequence of `max_length` tokens, which then could never finish.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        if blocks.blocks_for(config.max_length) > blocks.num_blocks:
            raise ValueError(f"{blocks.num_blocks} blocks cannot hold a sequence of {config.max_length} tokens")
        self.config = config
        self.blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefix_hits = 0
        self._arrivals = 0

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the waiting line.

        Raises:
            ValueError: it is empty, or has no room for one more token.
        """
        if not 0 < len(sequence.tokens) < self.config.max_length:
            raise ValueError(f"{len(sequence.tokens)} tokens, allowed are 1 to {self.config.max_length - 1}")
        sequence.arrival = self._arrivals
        self._arrivals += 1
        sequence.state = SequenceState.WAITING
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks. Harmless when it is already out."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._free(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED

    def schedule(self) -> Batch:
        """The next step: empty when nothing can run. Blocks are taken here; the batch must be committed or removed."""
        self.running.sort(key=_order)
        batch = Batch()
        preempted = self._add_decodes(batch)
        limit = self.config.max_chunk_tokens if batch.num_decodes else self.config.max_batch_tokens
        budget = limit
        for sequence in self.running:
            if budget and sequence.num_pending > 1 and not sequence.held:
                count = min(budget, sequence.num_pending)
                batch.add(sequence, count)
                budget -= count
        if not preempted:
            self._admit(batch, budget)
        return batch

    def commit(self, batch: Batch, tokens: Seq[Token]) -> list[FinishReason | None]:
        """Note that a step was computed.

        Args:
            batch: what `schedule` gave; rows whose sequence was removed meanwhile are passed over.
            tokens: what its emitting rows emitted, in order.

        Returns:
            For each emitting row why its sequence ended with this token, or None. Ended ones are removed.
        """
        emitted = iter(tokens)
        reasons: list[FinishReason | None] = []
        for row in batch.rows:
            sequence = row.sequence
            running = sequence.state is SequenceState.RUNNING
            if running:
                sequence.num_computed = row.start + row.count
                self._remember(sequence)
            if not row.emits:
                continue
            token = next(emitted)
            if not running:
                reasons.append(None)
                continue
            sequence.tokens.append(token)
            reason = self._finish_reason(sequence, token)
            if reason is not None:
                self.remove(sequence)
            reasons.append(reason)
        return reasons

    def _finish_reason(self, sequence: Sequence, token: Token) -> FinishReason | None:
        if token in sequence.stop_tokens:
            return "stop"
        if sequence.num_generated >= sequence.max_new_tokens or len(sequence.tokens) >= self.config.max_length:
            return "length"
        return None

    def _add_decodes(self, batch: Batch) -> bool:
        """Add a row for each sequence that decodes. Returns whether one was preempted for room."""
        preempted = False
        for sequence in tuple(self.running):
            if sequence.num_pending != 1 or sequence.held or sequence.state is not SequenceState.RUNNING:
                continue
            if len(sequence.block_table) * self.blocks.block_size < len(sequence.tokens):
                while not self.blocks.num_free:
                    preempted = True
                    if self._preempt() is sequence:
                        return preempted
                sequence.block_table += self.blocks.allocate(1)
            batch.add(sequence, 1)
            batch.num_decodes += 1
        return preempted

    def _preempt(self) -> Sequence:
        """Take the blocks of one sequence that is not in the batch yet: a held one, else the last in order."""
        sequence = next((other for other in reversed(self.running) if other.held), self.running[-1])
        self.running.remove(sequence)
        self._free(sequence)
        sequence.state = SequenceState.WAITING
        self.waiting.append(sequence)
        self.num_preemptions += 1
        return sequence

    def _admit(self, batch: Batch, budget: int) -> None:
        """Let waiting sequences in, the earliest first; none passes one that does not fit, else big ones starve."""
        if len(self.waiting) > 1:
            self.waiting.sort(key=_order)
        admitted: list[Sequence] = []
        for sequence in self.waiting:
            if sequence.held:
                continue
            if not budget or len(self.running) >= self.config.max_running or not self._take_blocks(sequence):
                break
            admitted.append(sequence)
            sequence.state = SequenceState.RUNNING
            self.running.append(sequence)
            count = min(budget, sequence.num_pending)
            batch.add(sequence, count)
            budget -= count
        if admitted:
            self.waiting = [sequence for sequence in self.waiting if sequence.state is SequenceState.WAITING]

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks of all its tokens, shared ones where their content is known."""
        size = self.blocks.block_size
        found: list[int] = []
        if sequence.cache_salt is not None:
            # The last token is always computed: its output is what the sequence waits for.
            found = self.blocks.find(self._digests(sequence, (len(sequence.tokens) - 1) // size))
        fresh = self.blocks.blocks_for(len(sequence.tokens)) - len(found)
        # One block in reserve for each running sequence, else the newcomer would soon be preempted again.
        if fresh + self.blocks.num_idle(found) + len(self.running) > self.blocks.num_free:
            return False
        self.blocks.share(found)
        sequence.block_table = found + self.blocks.allocate(fresh)
        sequence.num_computed = len(found) * size
        sequence.num_remembered = len(found)
        if found:
            self.num_prefix_hits += 1
        if not sequence.num_cached:
            sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
        return True

    def _digests(self, sequence: Sequence, count: int) -> list[bytes]:
        """The first `count` chained digests; computed once per block and kept."""
        size = self.blocks.block_size
        digests = sequence.digests
        for index in range(len(digests), count):
            previous = digests[-1] if digests else sequence.cache_salt or b""
            digests.append(chain_digest(previous, sequence.tokens[index * size : (index + 1) * size]))
        return digests[:count]

    def _remember(self, sequence: Sequence) -> None:
        if sequence.cache_salt is None or not self.blocks.prefix_cache:
            return
        full = sequence.num_computed // self.blocks.block_size
        if full > sequence.num_remembered:
            digests = self._digests(sequence, full)
            for index in range(sequence.num_remembered, full):
                self.blocks.remember(sequence.block_table[index], digests[index])
            sequence.num_remembered = full

    def _free(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = 0
