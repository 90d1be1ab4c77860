"""What the codec tells of its engines without loading one is true."""

from __future__ import annotations

from pathlib import Path

from omnistage_codec.engines import ENGINES, checkpoint_fault
from omnistage_codec.models import FAMILIES


def test_the_engines_told_are_those_that_can_be_loaded() -> None:
    assert tuple(FAMILIES) == ENGINES


def test_a_checkpoint_is_judged_by_its_layout(golden: Path, tmp_path: Path) -> None:
    assert checkpoint_fault("hibari", None) is None
    assert checkpoint_fault("qwen3_tts", golden / "custom_voice") is None
    assert checkpoint_fault("qwen3_tts", None) == "a qwen3_tts codec engine needs a checkpoint"
    assert checkpoint_fault("qwen3_tts", tmp_path) == f"{tmp_path} has no speech_tokenizer/config.json"
