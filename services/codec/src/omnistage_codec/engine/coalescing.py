"""When a batch begins, though more might join it: pure policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Coalescing:
    """A short wait for more items, so that one run of the model serves more of them.

    The wait counts from the first item that waits; no later one prolongs it.

    Attributes:
        target: items that are worth a run at once.
        window_s: longest wait; 0 never waits.
        max_batch: most items of a run.
    """

    target: int = 1
    window_s: float = 0.0
    max_batch: int = 64

    def wait_s(self, *, waiting: int, live: int, waited_s: float) -> float:
        """Seconds to wait on before the next run; 0 to begin it now.

        Args:
            waiting: items there are, at least one.
            live: requests that may still send one; too few to reach the target are not waited for.
            waited_s: how long the first item has waited.
        """
        if waiting >= min(self.target, self.max_batch) or live < self.target or waiting >= live:
            return 0.0
        return max(0.0, self.window_s - waited_s)
