"""Checkpoints in the published layout are read as they are, and whatever is wrong with one is said by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from services.talker.tests.checkpoints import CONFIG_FROM, FIXTURES, make_checkpoint

from omnistage.errors import ConfigError
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.config import read_config
from omnistage_talker.models.qwen3_tts.talker import Talker
from omnistage_talker.models.qwen3_tts.tokenizer import load_tokenizer

HEAD = "talker.codec_head.weight"


def _probe(talker: Talker) -> torch.Tensor:
    return talker.embeddings.text(list(range(40)))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "checkpoint")


def _shard(folder: Path, parts: int) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where: dict[str, str] = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = {name: tensor for index, (name, tensor) in enumerate(weights.items()) if index % parts == part}
        save_file(mine, folder / file)
        where |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_a_sharded_checkpoint_is_the_same(folder: Path) -> None:
    whole = _probe(load_talker(folder, length=64))
    _shard(folder, 3)
    assert torch.equal(_probe(load_talker(folder, length=64)), whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_of_any_dtype_are_converted(folder: Path, dtype: str) -> None:
    exact = _probe(load_talker(folder, length=64))
    stored = {
        name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(stored, folder / "model.safetensors")
    close = _probe(load_talker(folder, length=64))
    assert close.dtype == torch.float32
    assert torch.allclose(close, exact, atol=0.1, rtol=0.1)
    assert torch.equal(close, exact) == (dtype == "float32")
    computed = _probe(load_talker(folder, dtype=dtype, length=64))
    assert computed.dtype == getattr(torch, dtype)
    assert torch.allclose(computed.float(), exact, atol=0.3, rtol=0.1)


def test_weights_of_other_parts_are_left_alone(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"speaker_encoder.fc.weight": torch.zeros(2)}, folder / "model.safetensors")
    load_talker(folder, length=64)


def _without_head(weights: dict[str, torch.Tensor]) -> None:
    del weights[HEAD]


def _with_more(weights: dict[str, torch.Tensor]) -> None:
    weights["talker.model.layers.9.mlp.up_proj.weight"] = torch.zeros(2)


def _narrow(weights: dict[str, torch.Tensor]) -> None:
    weights[HEAD] = weights[HEAD][:, :-1].contiguous()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_head, f"1 missing: {HEAD}"),
        (_with_more, "1 unexpected: talker.model.layers.9.mlp.up_proj.weight"),
        (_narrow, f"tensor {HEAD} has shape (3072, 15), expected is (3072, 16)"),
    ],
)
def test_a_tensor_too_few_too_many_or_of_another_shape_is_named(folder: Path, change: Any, said: str) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ConfigError) as caught:
        load_talker(folder, length=64)
    assert said in caught.value.message


def test_what_the_index_promises_must_be_there(folder: Path) -> None:
    _shard(folder, 2)
    index = folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    other = next(file for file in values["weight_map"].values() if file != values["weight_map"][HEAD])
    values["weight_map"][HEAD] = other
    index.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"codec_head\.weight is missing, which the index puts there"):
        load_talker(folder, length=64)


def test_the_index_reaches_no_other_folder(folder: Path) -> None:
    _shard(folder, 1)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {HEAD: "../other.safetensors"}}))
    with pytest.raises(ConfigError, match=r"not a file of this folder"):
        load_talker(folder, length=64)


def test_damaged_and_missing_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10\x00\x00")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        load_talker(folder, length=64)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has neither model\.safetensors nor"):
        load_talker(folder, length=64)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load_talker(folder, length=64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3' is not supported"),
        ({"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "only the one of 12 Hz"),
        ({"tts_model_type": "singing"}, "tts_model_type 'singing' is none of"),
        ({"talker_config": None}, "config.json"),
        ({"im_start_token_id": "x"}, "invalid literal"),
    ],
)
def test_configurations_that_are_not_supported(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    shutil.copytree(CONFIG_FROM, tmp_path / "c")
    path = tmp_path / "c" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "c")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_act", "gelu", "activation 'gelu'"),
        ("attention_bias", True, "biases of attention"),
        ("rope_scaling", {"rope_type": "yarn"}, "rotary type 'yarn'"),
        ("rope_scaling", {"rope_type": "default", "mrope_section": [4, 2, 1]}, "does not fill head_dim"),
        ("num_key_value_heads", 3, "cannot share"),
        ("num_code_groups", 8, "disagree about num_code_groups"),
    ],
)
def test_decoders_that_are_not_supported(tmp_path: Path, key: str, value: Any, said: str) -> None:
    shutil.copytree(CONFIG_FROM, tmp_path / "c")
    path = tmp_path / "c" / "config.json"
    values = json.loads(path.read_text())
    values["talker_config"][key] = value
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "c")
    assert said in caught.value.message


def test_decoding_defaults_come_from_the_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(CONFIG_FROM, tmp_path / "c")
    assert read_config(tmp_path / "c").sampling.top_k == 50
    (tmp_path / "c" / "generation_config.json").write_text(
        json.dumps({"do_sample": False, "temperature": 0.5, "subtalker_temperature": 0.3, "max_new_tokens": 77})
    )
    sampling = read_config(tmp_path / "c").sampling
    assert (sampling.temperature, sampling.residual_temperature, sampling.max_frames) == (0.0, 0.3, 77)


def test_a_context_beyond_the_model_and_an_unknown_dtype_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"more than the model's 32768"):
        load_talker(folder, length=40_000)
    with pytest.raises(ConfigError, match=r"'int8' is none of"):
        load_talker(folder, dtype="int8")


TEXTS = [
    "Hello, world.",
    "  it's 2,345.60 €\n\n\tnew   line \n end ",
    "你好，世界！これは試験です。",
    "naïve café é́ 👩‍👩‍👧 <|im_end|> user assistant<tts_pad>",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_vocabulary_with_merges_is_the_same_tokenizer(tmp_path: Path, text: str) -> None:
    base = FIXTURES / "qwen3_tts" / "base"
    ids = read_config(base).text
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(base / name, tmp_path)
    assert load_tokenizer(tmp_path, ids).encode(text) == load_tokenizer(base, ids).encode(text)


def test_special_tokens_in_a_text_are_text() -> None:
    base = FIXTURES / "qwen3_tts" / "base"
    ids = read_config(base).text
    tokens = load_tokenizer(base, ids).encode("a<|im_end|>b<tts_pad>")
    assert len(tokens) > 10
    assert not {ids.im_end, ids.tts_pad, ids.im_start} & set(tokens)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    ids = read_config(FIXTURES / "qwen3_tts" / "base").text
    with pytest.raises(ConfigError, match=r"neither tokenizer\.json nor"):
        load_tokenizer(tmp_path, ids)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"cannot be read"):
        load_tokenizer(tmp_path, ids)
