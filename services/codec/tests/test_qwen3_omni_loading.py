"""Loading code2wav is strict, and says what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnistage.errors import ConfigError
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3_omni import load


@pytest.fixture(name="checkpoint")
def _checkpoint(golden_omni: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden_omni / "model" / name, tmp_path / name)
    return tmp_path


def _change(checkpoint: Path, name: str, value: np.ndarray[Any, Any] | None) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if value is None else tensors | {name: value}, checkpoint / "model.safetensors")


def _configure(checkpoint: Path, section: str | None, **changes: Any) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    (config if section is None else config[section]).update(changes)
    path.write_text(json.dumps(config))


def _load(checkpoint: Path | None, **options: Any) -> None:
    load(ModelOptions(checkpoint=checkpoint, **options))


def test_a_missing_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, "code2wav.decoder.0.conv.bias", None)
    with pytest.raises(ConfigError, match=r"has no weight code2wav\.decoder\.0\.conv\.bias"):
        _load(checkpoint)


def test_an_unexplained_weight_is_named(checkpoint: Path) -> None:
    _change(checkpoint, "code2wav.extra", np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match=r"does not explain: \['code2wav\.extra'\]"):
        _load(checkpoint)


def test_weights_of_other_parts_of_the_model_do_not_matter(checkpoint: Path) -> None:
    _change(checkpoint, "thinker.extra", np.zeros(3, np.float32))
    _load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_quantizers": 8}, r"code_embedding\.weight is \[32768, 8\], but the config says \[16384, 8\]"),
        ({"num_hidden_layers": 3}, r"has no weight code2wav\.pre_transformer\.layers\.2"),
        ({"num_hidden_layers": 1}, "does not explain"),
        ({"sliding_window": "wide"}, r"code2wav_config\.sliding_window: Input should be a valid integer"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(checkpoint: Path, changes: dict[str, Any], told: str) -> None:
    _configure(checkpoint, "code2wav_config", **changes)
    with pytest.raises(ConfigError, match=told):
        _load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "qwen2_5_omni"}, "model_type 'qwen2_5_omni' is not 'qwen3_omni_moe'"),
        ({"enable_audio_output": False}, "does not speak"),
        ({"code2wav_config": None}, "code2wav_config: Input should be"),
    ],
    ids=str,
)
def test_another_model_is_refused(checkpoint: Path, changes: dict[str, Any], told: str) -> None:
    _configure(checkpoint, None, **changes)
    with pytest.raises(ConfigError, match=told):
        _load(checkpoint)


def test_a_checkpoint_is_needed_and_must_be_readable(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="a qwen3_omni codec engine needs a checkpoint"):
        _load(None)
    with pytest.raises(ConfigError, match="dtype 'int8' is not one of"):
        _load(checkpoint, dtype="int8")
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        _load(checkpoint)
