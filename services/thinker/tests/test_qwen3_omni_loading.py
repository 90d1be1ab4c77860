"""Loading the thinker is strict, and says what is wrong; prompts whose media do not fit are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.ar.qwen3.positions import Media
from omnistage.errors import ConfigError, InvalidRequest
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.prompt import Towers, make_prompt
from omnistage_thinker.models.qwen3_omni.runner import SpokenRows
from omnistage_thinker.models.qwen3_omni.thinker import Thinker


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
        "thinker.model.layers.5.mlp.experts.3.up_proj.weight",
        "thinker.audio_tower.conv2d2.bias",
        "thinker.visual.merger_list.2.ln_q.weight",
    ],
)
def test_a_missing_weight_is_named(checkpoint: Path, name: str) -> None:
    _change(checkpoint, name, None)
    with pytest.raises(ConfigError, match=rf"1 missing: {name}"):
        load_thinker(checkpoint)


def test_an_unexpected_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, "thinker.extra", torch.zeros(3))
    with pytest.raises(ConfigError, match=r"1 unexpected: thinker\.extra"):
        load_thinker(checkpoint)


@pytest.mark.parametrize(
    ("section", "changes", "told"),
    [
        ("", {"model_type": "qwen2_5_omni"}, "model_type 'qwen2_5_omni' is not supported"),
        ("talker_config", {"accept_hidden_layer": 7}, "accept_hidden_layer 7 is none of 6 layers"),
        ("thinker_config.text_config", {"num_experts": 5}, "shape"),
        ("thinker_config.text_config", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("thinker_config.text_config", {"rope_scaling": None}, "mrope_section is missing"),
        ("thinker_config.audio_config", {"activation_function": "relu"}, "'relu' of the audio tower"),
        ("thinker_config.audio_config", {"n_window": None}, r"config\.json"),
        ("thinker_config.vision_config", {"hidden_act": "relu"}, "'relu' of the vision tower"),
        ("thinker_config.vision_config", {"num_position_embeddings": 2305}, "2305 is no square"),
        ("thinker_config.vision_config", {"depth": 3}, "unexpected"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(
    checkpoint: Path, section: str, changes: dict[str, Any], told: str
) -> None:
    _configure(checkpoint, section, **changes)
    with pytest.raises(ConfigError, match=told):
        load_thinker(checkpoint)


def test_a_missing_key_and_an_unknown_type_are_named(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is none of"):
        load_thinker(checkpoint, dtype="int8")
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    del config["thinker_config"]["audio_token_id"]
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="the key 'audio_token_id' is missing"):
        load_thinker(checkpoint)


def test_a_checkpoint_that_does_not_speak_has_no_layer_for_the_talker(checkpoint: Path) -> None:
    _configure(checkpoint, "", enable_audio_output=False)
    assert load_thinker(checkpoint).config.accept_layer is None


@torch.inference_mode()
def test_places_without_their_media_are_refused(thinker: Thinker) -> None:
    ids, width = thinker.config.ids, thinker.config.text.hidden_size
    with pytest.raises(InvalidRequest, match="2 places for media that make 0 tokens"):
        make_prompt(thinker, [ids.audio_start, ids.audio, ids.audio], Media(), Towers())
    with pytest.raises(InvalidRequest, match="1 places for media that make 3 tokens"):
        make_prompt(thinker, [ids.audio_start, ids.audio], Media(), Towers(audio=torch.zeros(3, width)))
    with pytest.raises(InvalidRequest, match="1 places for media that make 0 tokens"):
        make_prompt(thinker, [ids.vision_start, ids.image], Media(images=[(1, 2, 2)]), Towers())


def test_rows_that_are_computed_again_are_not_handed_out_twice() -> None:
    rows, numbers = SpokenRows(), torch.arange(8.0)[:, None]
    for start, end in ((0, 3), (0, 2), (2, 5), (5, 6), (0, 8)):
        rows.add(start, numbers[start:end], -numbers[start:end])
    assert torch.equal(torch.cat(rows.embeds), numbers)
    assert torch.equal(torch.cat(rows.accepted), -numbers)
