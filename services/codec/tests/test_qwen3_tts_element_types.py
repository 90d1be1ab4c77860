"""Checkpoints stored in, and networks computed in, each element type, from one file and from shards.

What is allowed is eight roundings of the type: errors of that many one behind the other, if none cancels another. The
networks have more, most of which cancel. An encoder's codes are not compared beyond the first group: what is left
after a few groups is smaller than the roundings are, and decides which of two near entries is taken.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from services.codec.tests.codes import decode_whole, load_wave, make_codes

from omnistage.errors import ConfigError
from omnistage.parity import Tolerance
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.weights import Placement
from omnistage_codec.models.qwen3_tts.config import read_tokenizer_config
from omnistage_codec.models.qwen3_tts.encoder import Clips
from omnistage_codec.models.qwen3_tts.loading import load_encoder, load_references

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
ROUNDINGS = 8
NARROW = list(ROUNDING)
CLIP = (0.3 * np.sin(0.05 * np.arange(48_000)) + 0.05 * np.random.default_rng(3).standard_normal(48_000)).astype("f4")

MakeStored = Callable[[str, int], Path]


def _save(tensors: dict[str, torch.Tensor], folder: Path, shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    where = {name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors" for index, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


@pytest.fixture(name="make_stored")
def _make_stored(golden: Path, tmp_path: Path) -> MakeStored:
    """The checkpoint for cloning with weights rounded to an element type and stored in it, in so many files."""

    def make(dtype: str, shards: int) -> Path:
        made = tmp_path / f"{dtype}-{shards}"
        for part in (".", "speech_tokenizer"):
            (made / part).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(golden / "base" / part / "config.json", made / part / "config.json")
            tensors = load_file(golden / "base" / part / "model.safetensors")
            _save({name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}, made / part, shards)
        return made

    return make


def _apart(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _latents(checkpoint: Path, dtype: str) -> NDArray[np.float32]:
    """What the encoder looks up in its codebooks."""
    config = read_tokenizer_config(checkpoint)
    encoder, _ = load_encoder(checkpoint, config, Placement(dtype=getattr(torch, dtype)))
    samples = torch.from_numpy(CLIP).to(getattr(torch, dtype))
    clips = Clips(samples[None, None], torch.tensor([len(CLIP)]))
    with torch.inference_mode():
        latents: NDArray[np.float32] = encoder.latents(encoder.contexts(encoder.wave(clips))).columns.float().numpy()
    return latents


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_the_decoder_in_narrow_types_comes_close(
    golden: Path, make_stored: MakeStored, dtype: str, shards: int
) -> None:
    codes = make_codes(30)
    exact = decode_whole(load_wave(golden / "base"), codes)
    found = decode_whole(load_wave(make_stored(dtype, shards), dtype=dtype), codes)
    assert found.dtype == np.float32
    assert found.shape == exact.shape
    assert 0.0 < _apart(found, exact) <= ROUNDINGS * ROUNDING[dtype]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_the_encoders_in_narrow_types_come_close(
    golden: Path, make_stored: MakeStored, dtype: str, shards: int
) -> None:
    stored = make_stored(dtype, shards)
    (exact,) = load_references(ModelOptions(checkpoint=golden / "base")).encode([CLIP])
    (found,) = load_references(ModelOptions(checkpoint=stored, dtype=dtype)).encode([CLIP])
    assert found.codes.shape == exact.codes.shape
    assert found.codes.dtype == np.int32
    assert np.mean(found.codes[:, 0] == exact.codes[:, 0]) >= 0.9
    assert found.embedding is not None
    assert exact.embedding is not None
    assert 0.0 < _apart(found.embedding, exact.embedding) <= ROUNDINGS * ROUNDING[dtype]
    assert 0.0 < _apart(_latents(stored, dtype), _latents(golden / "base", "float32")) <= ROUNDINGS * ROUNDING[dtype]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_stored_narrow_is_computed_in_float32_as_the_same_values_stored_wide(
    make_stored: MakeStored, tmp_path: Path, dtype: str, shards: int
) -> None:
    stored = make_stored(dtype, shards)
    wide = tmp_path / "wide"
    shutil.copytree(make_stored(dtype, 1), wide)
    for part in (".", "speech_tokenizer"):
        tensors = load_file(wide / part / "model.safetensors")
        save_file({name: tensor.float() for name, tensor in tensors.items()}, wide / part / "model.safetensors")
    codes = make_codes(20)
    found_wave, same_wave = (decode_whole(load_wave(path), codes) for path in (stored, wide))
    assert np.abs(found_wave - same_wave).max() <= Tolerance.WAVEFORM
    (found,), (same,) = (load_references(ModelOptions(checkpoint=path)).encode([CLIP]) for path in (stored, wide))
    assert np.array_equal(found.codes, same.codes)
    assert found.embedding is not None
    assert same.embedding is not None
    assert np.abs(found.embedding - same.embedding).max() <= Tolerance.SPEAKER_EMBEDDING


def test_entries_that_were_used_more_often_than_float16_can_count(golden: Path, tmp_path: Path) -> None:
    """An entry is a quotient; the parts of those that were used often are not numbers of float16."""
    (tmp_path / "speech_tokenizer").mkdir()
    for file in ("config.json", "speech_tokenizer/config.json"):
        shutil.copyfile(golden / "custom_voice" / file, tmp_path / file)
    tensors = load_file(golden / "custom_voice" / "speech_tokenizer" / "model.safetensors")
    for name in [name for name in tensors if name.startswith("decoder.") and "_codebook." in name]:
        tensors[name] = tensors[name].clamp(min=1e-5) * 1e6 if name.endswith("usage") else tensors[name] * 1e6
    save_file(tensors, tmp_path / "speech_tokenizer" / "model.safetensors")
    codes = make_codes(10)
    exact = decode_whole(load_wave(golden / "custom_voice"), codes)
    found = decode_whole(load_wave(tmp_path, dtype="float16"), codes)
    assert _apart(found, exact) <= ROUNDINGS * ROUNDING["float16"]


def test_other_types_are_refused(golden: Path) -> None:
    with pytest.raises(ConfigError, match="float64"):
        load_references(ModelOptions(checkpoint=golden / "base", dtype="float64"))
