"""What the talker tells of its engines without loading one is true."""

from __future__ import annotations

from pathlib import Path

from services.talker.tests.checkpoints import CONFIG_FROM

from omnistage.config import load_models
from omnistage.runtime.engines import checked_settings
from omnistage_talker.bootstrap import FrameEngineSettings
from omnistage_talker.engines import ENGINES, VOICES, checkpoint_fault
from omnistage_talker.models import FAMILIES, FRAME_FAMILIES
from omnistage_talker.models.hibari.model import FACTS
from omnistage_talker.models.qwen3_tts.config import read_config


def test_the_engines_told_are_those_that_can_be_loaded() -> None:
    assert (*FAMILIES, *FRAME_FAMILIES) == ENGINES


def test_the_voices_told_are_those_that_the_family_has() -> None:
    assert {FACTS.family: FACTS.voices} == VOICES


def test_checkpoints_are_told_from_others_by_their_names(tmp_path: Path) -> None:
    assert checkpoint_fault("hibari", tmp_path / "model.onnx") is None
    assert checkpoint_fault("hibari", tmp_path) == f"{tmp_path} is not an .onnx file"
    assert checkpoint_fault("qwen3_tts", tmp_path) == f"{tmp_path} is no folder with a config.json"
    (tmp_path / "config.json").write_text("{}")
    assert checkpoint_fault("qwen3_tts", tmp_path) is None
    assert checkpoint_fault("qwen3_tts", None) == "a talker engine needs a checkpoint"


def test_the_example_of_qwen3_tts_is_laid_over_the_default_models() -> None:
    deploy = Path(__file__).resolve().parents[3] / "deploy"
    models = load_models([deploy / "models.yaml", deploy / "models.qwen3-tts.yaml"])
    assert set(models.of_service("talker")) == {"heart", "qwen3-tts"}
    assert set(models.models["qwen3-tts"].voices.values()) == set(read_config(CONFIG_FROM).speakers)
    checked_settings(FrameEngineSettings, "qwen3-tts", models.engines["qwen3-tts"])
