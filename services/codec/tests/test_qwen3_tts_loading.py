"""Checkpoints: strict loading, shards, element types, and what is said of those that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from services.codec.tests.codes import decode_whole, load_wave, make_codes

from omnistage.errors import ConfigError
from omnistage_codec.models import ModelOptions, load_models
from omnistage_codec.models.qwen3.weights import read_tensors
from omnistage_codec.models.qwen3_tts.loading import fingerprint


@pytest.fixture(name="checkpoint")
def _checkpoint(golden: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    for name in ("config.json", "speech_tokenizer/config.json", "speech_tokenizer/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(golden / "custom_voice" / name, tmp_path / name)
    return tmp_path


def _change(checkpoint: Path, **changes: Any) -> None:
    """Set weights of the decoder; None removes one. `__` stands for a dot."""
    file = checkpoint / "speech_tokenizer" / "model.safetensors"
    tensors = load_file(file)
    for name, value in changes.items():
        full = name.replace("__", ".")
        if value is None:
            del tensors[full]
        else:
            tensors[full] = value
    save_file(tensors, file)


def _configure(checkpoint: Path, section: str | None, **changes: Any) -> None:
    path = checkpoint / "speech_tokenizer" / "config.json"
    config = json.loads(path.read_text())
    (config if section is None else config[section]).update(changes)
    path.write_text(json.dumps(config))


def test_a_missing_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, decoder__pre_conv__conv__bias=None)
    with pytest.raises(ConfigError, match=r"has no weight decoder\.pre_conv\.conv\.bias"):
        load_wave(checkpoint)


def test_an_unexplained_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, decoder__extra__weight=np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match=r"does not explain: \['decoder\.extra\.weight'\]"):
        load_wave(checkpoint)


def test_a_weight_of_another_shape_is_named(checkpoint: Path) -> None:
    _change(checkpoint, decoder__pre_conv__conv__bias=np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match=r"decoder\.pre_conv\.conv\.bias is \[3\], but the config says \[16\]"):
        load_wave(checkpoint)


def test_a_config_that_promises_more_layers_does_not_load(checkpoint: Path) -> None:
    _configure(checkpoint, "decoder_config", num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"has no weight decoder\.pre_transformer\.layers\.2"):
        load_wave(checkpoint)


def test_a_config_that_promises_fewer_layers_does_not_load(checkpoint: Path) -> None:
    _configure(checkpoint, "decoder_config", num_hidden_layers=1)
    with pytest.raises(ConfigError, match="does not explain"):
        load_wave(checkpoint)


def test_ratios_and_rate_must_agree(checkpoint: Path) -> None:
    _configure(checkpoint, None, decode_upsample_rate=960)
    with pytest.raises(ConfigError, match="decode_upsample_rate is 960, but the ratios give 1920"):
        load_wave(checkpoint)


def test_another_codec_is_refused(checkpoint: Path) -> None:
    _configure(checkpoint, None, model_type="qwen3_tts_tokenizer_25hz")
    with pytest.raises(ConfigError, match="qwen3_tts_tokenizer_25hz"):
        load_wave(checkpoint)


def test_a_config_without_a_number_names_it(checkpoint: Path) -> None:
    path = checkpoint / "speech_tokenizer" / "config.json"
    config = json.loads(path.read_text())
    del config["decoder_config"]["sliding_window"]
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="sliding_window: Field required"):
        load_wave(checkpoint)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_broken_config_is_named(checkpoint: Path, content: str) -> None:
    (checkpoint / "speech_tokenizer" / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_wave(checkpoint)


def test_a_broken_file_of_weights_is_named(checkpoint: Path) -> None:
    (checkpoint / "speech_tokenizer" / "model.safetensors").write_bytes(b"\x01" * 100)
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        load_wave(checkpoint)


def test_shards_load_like_one_file(golden: Path, checkpoint: Path) -> None:
    folder = checkpoint / "speech_tokenizer"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    codes = make_codes(5)
    assert np.array_equal(
        decode_whole(load_wave(checkpoint), codes), decode_whole(load_wave(golden / "custom_voice"), codes)
    )


def test_no_shard_lies_outside_the_checkpoint(checkpoint: Path) -> None:
    folder = checkpoint / "speech_tokenizer"
    (folder / "model.safetensors").rename(checkpoint / "elsewhere.safetensors")
    index = {"weight_map": {"decoder.pre_conv.conv.bias": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="elsewhere"):
        load_wave(checkpoint)


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_broken_index_is_named(checkpoint: Path, content: str) -> None:
    (checkpoint / "speech_tokenizer" / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError, match=r"index\.json cannot be read"):
        load_wave(checkpoint)


@pytest.mark.parametrize(("dtype", "allowed"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_narrow_element_types_come_close(golden: Path, dtype: str, allowed: float) -> None:
    codes = make_codes(30)
    narrow = decode_whole(load_wave(golden / "custom_voice", dtype=dtype), codes)
    whole = decode_whole(load_wave(golden / "custom_voice"), codes)
    assert narrow.dtype == np.float32
    assert 0.0 < np.abs(narrow - whole).max() <= allowed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"checkpoint": None}, "needs a checkpoint"),
        ({"dtype": "int8"}, "int8"),
        ({"device": "abacus"}, "abacus"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
)
def test_options_that_cannot_be_met(golden: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_models("qwen3_tts", ModelOptions(**{"checkpoint": golden / "custom_voice"} | options))


def test_encoders_come_with_checkpoints_for_cloning_or_where_asked_for(golden: Path) -> None:
    assert load_models("qwen3_tts", ModelOptions(checkpoint=golden / "custom_voice")).references is None


def test_another_weight_has_another_fingerprint(golden: Path) -> None:
    tensors = read_tensors(golden / "base" / "speech_tokenizer", "encoder.")
    before = fingerprint(tensors)
    assert before == fingerprint(dict(reversed(tensors.items())))
    name = "encoder.downsample.conv.weight"
    changed = tensors[name].clone()
    changed[0, 0, 0] += 1e-6
    assert fingerprint(tensors | {name: changed}) != before
