"""Qwen3-TTS checkpoints: recorded ones, and ones made with random weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from services.talker.tests.checkpoints import FIXTURES, make_checkpoint

from omnistage_talker.models.qwen3_omni.talker import OmniTalker
from omnistage_talker.models.qwen3_omni.talker import load_talker as load_omni_talker
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.talker import Talker


@pytest.fixture(scope="session", name="golden")
def _golden() -> Path:
    """The whole set of golden fixtures where OMNISTAGE_GOLDEN names it or it lies beside the project, else our part."""
    named = os.environ.get("OMNISTAGE_GOLDEN")
    beside = Path(__file__).resolve().parents[4] / "shared" / "golden"
    folder = Path(named) if named else beside if beside.is_dir() else FIXTURES
    assert (folder / "qwen3_tts" / "fixtures").is_dir(), f"{folder} holds no golden fixtures"
    return folder.resolve() / "qwen3_tts"


@pytest.fixture(scope="session", name="golden_omni")
def _golden_omni(golden: Path) -> Path:
    """The same of Qwen3-Omni."""
    return golden.parent / "qwen3_omni"


@pytest.fixture(scope="session", name="omni_talker")
def _omni_talker(golden_omni: Path) -> OmniTalker:
    """The tiny talker of Qwen3-Omni."""
    return load_omni_talker(golden_omni / "model")


@pytest.fixture(scope="session", name="talkers")
def _talkers(golden: Path) -> dict[str, Talker]:
    """Checkpoint -> its talker, of those with recordings."""
    kinds = [path.name.split(".")[1] for path in sorted((golden / "fixtures").glob("meta.*.json"))]
    return {kind: load_talker(golden / kind, length=2048) for kind in kinds}


@pytest.fixture(scope="session", name="made")
def _made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task -> a checkpoint with random weights.

    "small" is a CustomVoice one of the 0.6B kind, and "ending" one whose answers end by themselves.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        "custom_voice": make_checkpoint(folder / "custom_voice"),
        "small": make_checkpoint(folder / "small", tts_model_size="0b6"),
        "ending": make_checkpoint(folder / "ending", end_scale=2.5),
        "voice_design": make_checkpoint(folder / "voice_design", tts_model_type="voice_design"),
        "base": make_checkpoint(folder / "base", tts_model_type="base"),
    }
