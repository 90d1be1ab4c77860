"""Whether work in threads is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StallWatch:
    """Follows steps that run in threads. A step that takes longer than it may is stuck.

    Args:
        allowed_s: seconds that a step may take.
        clock: monotonic seconds.
    """

    def __init__(self, allowed_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed_s = allowed_s
        self._clock = clock
        self._started: dict[object, float] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step, in the thread that runs it."""
        key = object()
        self._started[key] = self._clock()
        try:
            yield
        finally:
            del self._started[key]

    def stalled_s(self) -> float:
        """Seconds by which the oldest running step exceeds what it may take; 0 while none does."""
        started = min(list(self._started.values()), default=None)
        return 0.0 if started is None else max(0.0, self._clock() - started - self._allowed_s)
