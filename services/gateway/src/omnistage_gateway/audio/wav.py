"""RIFF/WAVE and raw PCM: 16-bit little-endian mono, written without a library."""

from __future__ import annotations

import struct

from omnistage_gateway.audio.encoder import Samples

UNKNOWN_SIZE = 0xFFFFFFFF
"""Size fields of a stream whose length nobody knows yet; readers take it as "to the end of the data"."""

_HEADER_BYTES = 44
_SAMPLE_BYTES = 2


def wav_header(rate_hz: int, data_bytes: int | None) -> bytes:
    """The 44 bytes before the samples (canonical RIFF/WAVE, format tag 1).

    Args:
        data_bytes: size of the samples; None if it is not known.
    """
    data = UNKNOWN_SIZE if data_bytes is None else data_bytes
    riff = UNKNOWN_SIZE if data_bytes is None else data_bytes + _HEADER_BYTES - 8
    return b"".join(
        (
            struct.pack("<4sI4s", b"RIFF", riff, b"WAVE"),
            struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, rate_hz * _SAMPLE_BYTES, _SAMPLE_BYTES, 16),
            struct.pack("<4sI", b"data", data),
        )
    )


def pcm_bytes(samples: Samples) -> bytes:
    """[samples] int16 as s16le."""
    return samples.astype("<i2", copy=False).tobytes()


class PcmEncoder:
    """Samples as they are."""

    def __init__(self) -> None:
        self.num_given = 0

    def encode(self, samples: Samples) -> bytes:
        self.num_given += len(samples)
        return pcm_bytes(samples)

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is held."""


class WavEncoder:
    """A header, then samples."""

    def __init__(self, rate_hz: int, *, whole: bool) -> None:
        self._rate_hz = rate_hz
        self._whole = whole
        self._started = False
        self._held = bytearray()
        self.num_given = 0

    def encode(self, samples: Samples) -> bytes:
        if self._whole:
            self._held += pcm_bytes(samples)
            return b""
        self.num_given += len(samples)
        return self._start() + pcm_bytes(samples)

    def finish(self) -> bytes:
        if self._whole:
            self.num_given = len(self._held) // _SAMPLE_BYTES
            return wav_header(self._rate_hz, len(self._held)) + bytes(self._held)
        return self._start()

    def close(self) -> None:
        self._held = bytearray()

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return wav_header(self._rate_hz, None)
