"""Loading the talker is strict, and says what is wrong; prompts that cannot be spoken are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.ar.qwen3.positions import Media
from omnistage.errors import ConfigError, InvalidRequest
from omnistage_talker.models.qwen3_omni.prompt import Heard, Prompt, user_positions
from omnistage_talker.models.qwen3_omni.talker import OmniTalker, load_talker

START, SYSTEM, USER, ASSISTANT, LINE = 273, 271, 266, 263, 10


@pytest.fixture(name="checkpoint")
def _checkpoint(golden_omni: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden_omni / "model" / name, tmp_path / name)
    return tmp_path


def _change(checkpoint: Path, name: str, value: Tensor | None) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if value is None else tensors | {name: value}, checkpoint / "model.safetensors")


def _configure(checkpoint: Path, section: str, **changes: Any) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    part = config
    for name in section.split(".") if section else ():
        part = part[name]
    part.update(changes)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name",
    [
        "talker.model.layers.2.mlp.experts.5.down_proj.weight",
        "talker.model.layers.0.mlp.shared_expert_gate.weight",
        "talker.hidden_projection.linear_fc2.bias",
        "talker.code_predictor.lm_head.14.weight",
    ],
)
def test_a_missing_weight_is_named(checkpoint: Path, name: str) -> None:
    _change(checkpoint, name, None)
    with pytest.raises(ConfigError, match=rf"1 missing: {name}"):
        load_talker(checkpoint)


def test_an_unexpected_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, "talker.extra", torch.zeros(3))
    with pytest.raises(ConfigError, match=r"1 unexpected: talker\.extra"):
        load_talker(checkpoint)


@pytest.mark.parametrize(
    ("section", "changes", "told"),
    [
        ("", {"model_type": "qwen3_tts"}, "model_type 'qwen3_tts' is not supported"),
        ("", {"enable_audio_output": False}, "does not speak"),
        ("talker_config", {"num_code_groups": 8}, "disagree about num_code_groups"),
        ("talker_config", {"speaker_id": None}, r"config\.json"),
        ("talker_config.text_config", {"shared_expert_intermediate_size": 0}, "unexpected"),
        ("talker_config.text_config", {"num_hidden_layers": 4}, "missing"),
        ("talker_config.text_config", {"rope_scaling": None}, "mrope_section is missing"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(
    checkpoint: Path, section: str, changes: dict[str, Any], told: str
) -> None:
    _configure(checkpoint, section, **changes)
    with pytest.raises(ConfigError, match=told):
        load_talker(checkpoint)


def test_a_missing_key_and_an_unknown_type_are_named(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is none of"):
        load_talker(checkpoint, dtype="int8")
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    del config["tts_pad_token_id"]
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="the key 'tts_pad_token_id' is missing"):
        load_talker(checkpoint)


def test_of_a_conversation_the_users_turns_are_heard(omni_talker: OmniTalker) -> None:
    system, answer = [START, SYSTEM, LINE, 1, LINE], [START, ASSISTANT, LINE, 2, LINE]
    first, second = [START, USER, LINE, 3, 4, LINE], [START, USER, LINE, 5, LINE]
    ids = [*system, *first, *answer, *second, START, ASSISTANT, LINE]
    kept = [ids[index] for index in user_positions(ids, omni_talker.config)]
    assert kept == first + second
    assert user_positions([*system, START], omni_talker.config) == []


def _heard(ids: list[int], width: int) -> Heard:
    rows = torch.randn(len(ids), width, generator=torch.Generator().manual_seed(0))
    return Heard(ids=ids, embeds=rows, accepted=-rows, marks=rows[:3], media=Media())


def test_prompts_that_cannot_be_spoken_are_refused(omni_talker: OmniTalker) -> None:
    heard = _heard([START, USER, LINE, 3, LINE, START, ASSISTANT, LINE], omni_talker.config.thinker_width)
    with pytest.raises(InvalidRequest, match="no voice 'nobody'; there are: chelsie, ethan, aiden"):
        Prompt(omni_talker, heard, "nobody")
    with pytest.raises(InvalidRequest, match="does not end with the opening"):
        Prompt(omni_talker, replace(heard, ids=[*heard.ids[:-1], 7, 8][-8:]), "ethan")
    with pytest.raises(InvalidRequest, match="fewer places"):
        Prompt(omni_talker, replace(heard, media=Media(images=[(1, 2, 2)])), "ethan")


def test_an_answer_without_words_begins_with_the_end_of_text(omni_talker: OmniTalker) -> None:
    heard = _heard([START, USER, LINE, 3, LINE, START, ASSISTANT, LINE], omni_talker.config.thinker_width)
    silent, spoken = Prompt(omni_talker, heard, "ethan"), Prompt(omni_talker, heard, "ethan")
    silent.add(heard.embeds[:0])
    silent.finish()
    spoken.add(heard.marks[1:2])
    assert silent.prefill is not None
    assert spoken.prefill is not None
    assert torch.allclose(silent.prefill, spoken.prefill, atol=1e-6)
    assert len(silent.later) == 0
    assert silent.later.ready(10)
