"""What the engine counts."""

from __future__ import annotations

import time
from dataclasses import dataclass

from omnistage.ar.scheduler import Batch


@dataclass(slots=True)
class EngineCounters:
    """Sums since the start; written by the step thread only."""

    steps: int = 0
    step_time_s: float = 0.0
    tokens: int = 0
    emitted: int = 0
    failed_steps: int = 0
    last_step_s: float = 0.0
    last_step_at: float = 0.0
    last_batch: int = 0
    max_batch: int = 0

    def note(self, batch: Batch, emitted: int, duration_s: float) -> None:
        """Count a step. `last_step_at` is on the monotonic clock."""
        self.last_step_s = duration_s
        self.last_step_at = time.monotonic()
        self.step_time_s += duration_s
        self.last_batch = len(batch.rows)
        self.max_batch = max(self.max_batch, self.last_batch)
        self.tokens += batch.num_tokens
        self.emitted += emitted
        self.steps += 1


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step, for metrics.

    Attributes:
        duration_s: of the whole step, sampling included.
        rows: sequences in it.
        tokens: tokens computed.
        blocks_used: blocks of the KV cache that belong to running sequences.
        blocks_cached: blocks that nobody uses and whose content is remembered.
        blocks_free: the others.
    """

    duration_s: float
    rows: int
    tokens: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
