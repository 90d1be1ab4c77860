"""Codes to decode, and decoding them in various ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnistage_codec.models import ModelOptions
from omnistage_codec.models.base import Samples
from omnistage_codec.models.qwen3.stream import StreamedWave
from omnistage_codec.models.qwen3_tts import Qwen3TTSWave, load

Codes = NDArray[np.int32]


def load_wave(checkpoint: Path, **options: Any) -> Qwen3TTSWave:
    wave, _ = load(ModelOptions(checkpoint=checkpoint, references=False, **options))
    return wave


def make_codes(frames: int, seed: int = 0) -> Codes:
    """[frames, 16] drawn at random."""
    return np.random.default_rng(seed).integers(0, 2048, (frames, 16)).astype(np.int32)


def decode_whole(wave: StreamedWave, codes: Codes, context: Codes | None = None) -> Samples:
    state = wave.new_state(seed=0, voice="", context=context)
    return wave.decode(state, codes, segment=0, segment_frame=0, segment_end=True)


def decode_in_steps(wave: StreamedWave, codes: Codes, sizes: Iterable[int]) -> Samples:
    """In steps of these sizes, repeated as often as it takes."""
    state, start, parts = wave.new_state(seed=0, voice=""), 0, []
    for size in itertools.cycle(sizes):
        end = start + size >= len(codes)
        frames = codes[start : start + size]
        parts.append(wave.decode(state, frames, segment=0, segment_frame=start, segment_end=end))
        start += size
        if end:
            break
    return np.concatenate(parts)
