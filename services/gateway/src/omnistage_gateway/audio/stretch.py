"""Faster or slower at the same pitch, by libavfilter's atempo."""

from __future__ import annotations

from fractions import Fraction

import av
import av.filter
import numpy as np

from omnistage_gateway.audio.av_frames import frame_of, mapped_errors
from omnistage_gateway.audio.encoder import Samples

_BLOCK = 480
"""Samples per frame that go into the filter: always the same, so that its output does not depend on the pieces."""

_LOW, _HIGH = 0.5, 2.0
"""Within these atempo overlaps and adds; above 2 it would skip samples (FFmpeg's filter documentation)."""


class Stretch:
    """Plays a stream `tempo` times as fast. The output has exactly round(samples / tempo) samples."""

    def __init__(self, rate_hz: int, tempo: float) -> None:
        self._rate_hz = rate_hz
        self._tempo = tempo
        self._taken = 0
        self._given = 0
        self._waiting = np.zeros(0, np.int16)
        with mapped_errors("the tempo filter"):
            self._graph = av.filter.Graph()
            source = self._graph.add_abuffer(
                sample_rate=rate_hz, format="s16", layout="mono", time_base=Fraction(1, rate_hz)
            )
            steps = [self._graph.add("atempo", repr(factor)) for factor in tempo_factors(tempo)]
            self._graph.link_nodes(source, *steps, self._graph.add("abuffersink")).configure()

    def feed(self, samples: Samples) -> Samples:
        """The next [samples] int16; returns what is ready."""
        self._waiting = np.concatenate((self._waiting, samples))
        whole = len(self._waiting) // _BLOCK * _BLOCK
        ready, self._waiting = self._waiting[:whole], self._waiting[whole:]
        return self._out(self._push(ready))

    def finish(self) -> Samples:
        """No more will come; returns the rest, cut or filled with silence to the exact length."""
        rest = [self._push(self._waiting)]
        if self._taken:
            with mapped_errors("the tempo filter"):
                self._graph.push(None)
                rest += self._pull()
        expected = round(self._taken / self._tempo) - self._given
        out = np.concatenate(rest)[: max(0, expected)]
        return np.pad(out, (0, max(0, expected - len(out))))

    def _push(self, samples: Samples) -> Samples:
        out = [np.zeros(0, np.int16)]
        with mapped_errors("the tempo filter"):
            for start in range(0, len(samples), _BLOCK):
                block = samples[start : start + _BLOCK]
                self._graph.push(frame_of(block, self._rate_hz, self._taken))
                self._taken += len(block)
                out += self._pull()
        return np.concatenate(out)

    def _pull(self) -> list[Samples]:
        frames: list[Samples] = []
        while True:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):
                return frames
            assert isinstance(frame, av.AudioFrame)
            frames.append(frame.to_ndarray().reshape(-1).astype(np.int16))

    def _out(self, samples: Samples) -> Samples:
        self._given += len(samples)
        return samples


def tempo_factors(tempo: float) -> list[float]:
    """Factors within 0.5 to 2 whose product is `tempo`."""
    factors: list[float] = []
    while tempo < _LOW or tempo > _HIGH:
        step = _LOW if tempo < _LOW else _HIGH
        factors.append(step)
        tempo /= step
    return [*factors, tempo]
