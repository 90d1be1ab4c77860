"""The whole way of one stream: stretch, resample, encode, each only where it is needed."""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np

from omnistage.errors import StageFailed
from omnistage_gateway.audio.encoder import AudioFormat, Encoder, Samples, encoder_for, supported_rate
from omnistage_gateway.audio.resample import Resample
from omnistage_gateway.audio.stretch import Stretch

DEFAULT_RATE_HZ = 24_000
"""Rate of raw PCM unless asked otherwise (what clients of the API assume), and of an answer without a sample."""


_EARLY_S = 0.1


def early_cut(samples: Samples, rate_hz: int) -> list[Samples]:
    """A stream's first piece in two, so that the beginning leaves before all of it is encoded.

    The first clause may be seconds long, and mp3 takes about 10 ms for each.
    """
    early = round(rate_hz * _EARLY_S)
    return [samples] if len(samples) <= early else [samples[:early], samples[early:]]


class _Step(Protocol):
    def feed(self, samples: Samples) -> Samples: ...

    def finish(self) -> Samples: ...


class Transcoder:
    """Takes pieces of samples, gives bytes. Built when the first piece has said its rate.

    Thread-safe in so far as `close` waits for a call that is under way, and later calls give nothing.

    Attributes:
        samples_out: how many samples have gone into the encoder so far.
        rate_hz: their rate, known from the first piece on.
    """

    def __init__(
        self, audio_format: AudioFormat, *, rate_hz: int | None = None, tempo: float = 1.0, whole: bool = False
    ) -> None:
        """A chain for one request.

        Args:
            rate_hz: asked for; None for 24 kHz as raw PCM and the model's own rate otherwise.
            tempo: how much faster than the pieces it is to sound.
            whole: see `encoder_for`.
        """
        self._format = audio_format
        self._asked_hz = rate_hz
        self._tempo = tempo
        self._whole = whole
        self._lock = threading.Lock()
        self._source_hz = 0
        self._steps: list[_Step] = []
        self._encoder: Encoder | None = None
        self._closed = False
        self.samples_out = 0
        self.rate_hz = 0

    @property
    def duration_s(self) -> float:
        """Seconds of audio given so far."""
        return self.samples_out / self.rate_hz if self.rate_hz else 0.0

    @property
    def given_s(self) -> float:
        """Seconds of audio whose bytes were given so far; an encoder holds the last ones back until more come."""
        return self._encoder.num_given / self.rate_hz if self._encoder is not None else 0.0

    @property
    def begun(self) -> bool:
        """Whether any samples were fed."""
        return self._encoder is not None

    @property
    def copies_only(self) -> bool:
        """Whether the next samples will merely be copied: no library has a part in it."""
        return self._encoder is not None and not self._steps and not self._format.codec

    def feed(self, samples: Samples, rate_hz: int) -> bytes:
        """The next [samples] int16.

        Raises:
            StageFailed: the rate changed within the stream, or a library refused.
        """
        with self._lock:
            if self._closed:
                return b""
            encoder = self._encoder or self._open(rate_hz)
            if rate_hz != self._source_hz:
                raise StageFailed("the sample rate changed within a stream", code="rate_changed", stage="gateway")
            for step in self._steps:
                samples = step.feed(samples)
            return self._encode(encoder, samples)

    def finish(self) -> bytes:
        """No more will come; returns the remaining bytes. Raises as `feed`."""
        with self._lock:
            if self._closed:
                return b""
            encoder = self._encoder or self._open(DEFAULT_RATE_HZ)
            rest = np.zeros(0, np.int16)
            for step in self._steps:
                rest = np.concatenate((step.feed(rest), step.finish()))
            return self._encode(encoder, rest) + encoder.finish()

    def close(self) -> None:
        """Free everything. Idempotent."""
        with self._lock:
            self._closed = True
            self._steps = []
            if self._encoder is not None:
                self._encoder.close()

    def _open(self, source_hz: int) -> Encoder:
        wanted = self._asked_hz or (DEFAULT_RATE_HZ if self._format.name == "pcm" else source_hz)
        self.rate_hz = supported_rate(self._format, wanted)
        self._source_hz = source_hz
        if self._tempo != 1.0:
            self._steps.append(Stretch(source_hz, self._tempo))
        if self.rate_hz != source_hz:
            self._steps.append(Resample(source_hz, self.rate_hz))
        self._encoder = encoder_for(self._format, self.rate_hz, whole=self._whole)
        return self._encoder

    def _encode(self, encoder: Encoder, samples: Samples) -> bytes:
        self.samples_out += len(samples)
        return encoder.encode(samples)
