"""The client's clock: whether an audio stream ran dry while it was played."""

from __future__ import annotations

import time
from collections.abc import Callable

from omnistage.observability import Metrics, names


class Playback:
    """Follows one stream as a client plays it that starts with the first samples and never pauses by itself.

    Args:
        streamed: whether the client gets samples as they are made; an answer in one piece cannot run dry.
        clock: monotonic seconds.
    """

    def __init__(
        self, metrics: Metrics, model: str, *, streamed: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._streamed = streamed
        self._clock = clock
        self._began = clock()
        self._dry_at: float | None = None
        self._sent_s = 0.0

    def sent(self, total_s: float) -> None:
        """So many seconds of audio have been sent in all."""
        if total_s <= self._sent_s:
            return
        now = self._clock()
        fresh_s, self._sent_s = total_s - self._sent_s, total_s
        if self._streamed and self._dry_at is not None and now > self._dry_at:
            self._metrics.add(names.CLIENT_UNDERRUNS, model=self._model)
            self._metrics.add(names.CLIENT_UNDERRUN_SECONDS, now - self._dry_at, model=self._model)
        self._dry_at = max(self._dry_at or now, now) + fresh_s
        self._metrics.add(names.AUDIO_SECONDS, fresh_s, model=self._model)

    def ended(self) -> None:
        """The stream is complete."""
        if self._sent_s:
            self._metrics.observe(
                names.REAL_TIME_FACTOR, (self._clock() - self._began) / self._sent_s, model=self._model
            )
