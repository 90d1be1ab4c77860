"""Frames to decode: drawn at random, but shaped like speech."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from services.codec.tests.codes import load_wave

from omnistage_codec.models import ModelOptions
from omnistage_codec.models.hibari import layout
from omnistage_codec.models.qwen3_omni import Qwen3OmniWave
from omnistage_codec.models.qwen3_omni import load as load_omni
from omnistage_codec.models.qwen3_tts import Qwen3TTSWave

MakeFrames = Callable[..., NDArray[np.float32]]


def make_frames(count: int, *, seed: int = 0, f0: NDArray[np.float32] | float | None = None) -> NDArray[np.float32]:
    """[count, WIDTH] frames; by default voiced in stretches, with a moving pitch."""
    rng = np.random.default_rng(seed)
    frames = rng.standard_normal((count, layout.WIDTH)).astype(np.float32)
    for branch, level in (("lh", -2.0), ("ln", -4.0), ("lr", -4.0)):
        frames[:, layout.columns(branch)] += np.float32(level)
    pitch = np.clip(180.0 + np.cumsum(rng.standard_normal(count) * 12.0), 60.0, 500.0)
    voiced = np.cumsum(rng.random(count) < 0.15) % 2 == 0
    frames[:, layout.F0_COLUMN] = np.where(voiced, pitch, -0.5) if f0 is None else f0
    return frames


@pytest.fixture(scope="session", name="make_frames")
def _make_frames() -> MakeFrames:
    return make_frames


@pytest.fixture(scope="session", name="golden")
def _golden() -> Path:
    """The whole set of golden fixtures where OMNISTAGE_GOLDEN names it or it lies beside the project, else our part."""
    named = os.environ.get("OMNISTAGE_GOLDEN")
    beside = Path(__file__).resolve().parents[4] / "shared" / "golden"
    folder = Path(named) if named else beside if beside.is_dir() else Path(__file__).parent / "fixtures"
    assert (folder / "qwen3_tts" / "fixtures").is_dir(), f"{folder} holds no golden fixtures"
    return folder.resolve() / "qwen3_tts"


@pytest.fixture(scope="session", name="golden_omni")
def _golden_omni(golden: Path) -> Path:
    """The same of Qwen3-Omni."""
    return golden.parent / "qwen3_omni"


@pytest.fixture(scope="session", name="omni_wave")
def _omni_wave(golden_omni: Path) -> Qwen3OmniWave:
    """The tiny code2wav."""
    return load_omni(ModelOptions(checkpoint=golden_omni / "model"))


@pytest.fixture(scope="session", name="wave")
def _wave(golden: Path) -> Qwen3TTSWave:
    """The tiny decoder."""
    return load_wave(golden / "custom_voice")
