"""The client's clock: whether an audio stream ran dry while it was played."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Self

from opentelemetry import trace

from omnistage.observability import Metrics, get_logger, names

_log = get_logger(__name__)


class Playback:
    """Follows one stream as a client plays it that starts with the first samples written and never pauses by itself.

    The stream ran dry if its next bytes were not there when all before them had been played. Time that the client
    takes to receive bytes is its own: one that stops reading has enough, and its clock stands still meanwhile.

    To be entered when the request arrives; what was measured is told when it is left.

    Args:
        request_id: for the log.
        streamed: whether the client gets samples as they are made; an answer in one piece cannot run dry.
        clock: monotonic seconds.

    Attributes:
        underruns, underrun_s: how often it ran dry, and for how long in all.
        first_audio_s: seconds from the request's arrival to the first samples written, in one piece the last; None
            before.
    """

    def __init__(
        self,
        metrics: Metrics,
        model: str,
        request_id: str,
        *,
        streamed: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._request_id = request_id
        self._streamed = streamed
        self._clock = clock
        self._arrived = self._began = clock()
        self._dry_at: float | None = None
        self._sent_s = 0.0
        self.underruns = 0
        self.underrun_s = 0.0
        self.first_audio_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.first_audio_s is None:
            return
        values = {
            names.ATTR_AUDIO_S: round(self._sent_s, 4),
            names.ATTR_FIRST_AUDIO_S: round(self.first_audio_s, 4),
            names.ATTR_UNDERRUNS: self.underruns,
            names.ATTR_UNDERRUN_S: round(self.underrun_s, 4),
        }
        trace.get_current_span().set_attributes(values)
        fields = {name.removeprefix("omnistage."): value for name, value in values.items()}
        _log.info("audio_sent", request_id=self._request_id, model=self._model, streamed=self._streamed, **fields)

    def admitted(self) -> None:
        """The request has left the waiting line."""
        self._began = self._clock()

    async def write(self, writing: Awaitable[None], total_s: float) -> None:
        """Have the next bytes written.

        Args:
            writing: returns when they were handed to the client's connection.
            total_s: seconds of audio that are written with them, from the beginning.
        """
        ready = self._clock()
        await writing
        if total_s <= self._sent_s:
            return
        now = self._clock()
        fresh_s, self._sent_s = total_s - self._sent_s, total_s
        if self._streamed and self._dry_at is not None and ready > self._dry_at:
            self._ran_dry(ready - self._dry_at)
        self._dry_at = max(self._dry_at or now, now) + fresh_s
        if self.first_audio_s is None or not self._streamed:
            self.first_audio_s = now - self._arrived
        self._metrics.add(names.AUDIO_SECONDS, fresh_s, model=self._model)

    def ended(self) -> None:
        """The stream is complete."""
        if self._sent_s:
            self._metrics.observe(
                names.REAL_TIME_FACTOR, (self._clock() - self._began) / self._sent_s, model=self._model
            )

    def _ran_dry(self, seconds: float) -> None:
        self.underruns += 1
        self.underrun_s += seconds
        self._metrics.add(names.CLIENT_UNDERRUNS, model=self._model)
        self._metrics.add(names.CLIENT_UNDERRUN_SECONDS, seconds, model=self._model)
