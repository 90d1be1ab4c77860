"""Listening to answers: decoding, recognizing, comparing words."""

from __future__ import annotations

import io
import re
import threading
from functools import cache
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

Samples = NDArray[np.int16]

_RATE_HZ = 16_000
_turn = threading.Lock()
_NUMBER = re.compile(r"[^a-z' ]+")


def decode(data: bytes, container: str | None = None) -> tuple[Samples, int]:
    """All samples of an encoded file as mono int16, and their rate."""
    with av.open(io.BytesIO(data), "r", format=container) as source:
        resampler = av.AudioResampler(format="s16", layout="mono")
        frames: list[NDArray[Any]] = []
        rate = 0
        for frame in source.decode(audio=0):
            rate = frame.sample_rate
            frames += [part.to_ndarray()[0] for part in resampler.resample(frame)]
        frames += [part.to_ndarray()[0] for part in resampler.resample(None)]
    return np.concatenate(frames).astype(np.int16), rate


@cache
def _decoder() -> Any:
    from pocketsphinx import Decoder

    return Decoder(samprate=_RATE_HZ, loglevel="FATAL")


def recognize(samples: Samples, rate_hz: int) -> str:
    """What pocketsphinx hears, lower case. Callable from several threads; they take turns."""
    heard = soxr.resample(samples.astype(np.float32) / 32768, rate_hz, _RATE_HZ)
    pcm = (np.clip(heard, -1, 1) * 32767).astype("<i2").tobytes()
    with _turn:
        decoder = _decoder()
        decoder.start_utt()
        decoder.process_raw(pcm, no_search=False, full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        return hypothesis.hypstr if hypothesis is not None else ""


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return _NUMBER.sub(" ", text.lower().replace("’", "'")).split()


def distance(said: list[str], heard: list[str]) -> int:
    """Levenshtein distance between two word lists."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, start=1):
        previous, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


def word_error_rate(said: str, heard: str) -> float:
    """Edits per word that was said."""
    return distance(words(said), words(heard)) / max(1, len(words(said)))
