"""Tiny checkpoints for tests of the whole system."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

_PARTS = Path(__file__).parents[2] / "services" / "codec" / "tests" / "fixtures" / "qwen3_tts"
_TOKENIZER = "speech_tokenizer"


def tiny_codec(folder: Path) -> Path:
    """A codec with decoder, encoder and speaker encoder, joined from the parts that come with the sources."""
    decoder, encoder = (_PARTS / name / _TOKENIZER for name in ("custom_voice", "base"))
    (folder / _TOKENIZER).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(_PARTS / "base" / name, folder / name)
    tensors = load_file(decoder / "model.safetensors") | load_file(encoder / "model.safetensors")
    save_file(tensors, folder / _TOKENIZER / "model.safetensors")
    config = json.loads((encoder / "config.json").read_text())
    config["decoder_config"] = json.loads((decoder / "config.json").read_text())["decoder_config"]
    (folder / _TOKENIZER / "config.json").write_text(json.dumps(config))
    return folder


def tiny_cloning_codec(folder: Path, *, width: int = 16, groups: int = 16) -> Path:
    """The same with as many groups as its decoder reads, and a speaker embedding as wide as tiny talkers' states.

    The parts that come with the sources have fewer; those that are missing are made of those that are there.
    """
    tiny_codec(folder)
    _widen_embedding(folder, width)
    _add_groups(folder / _TOKENIZER, groups)
    return folder


def _widen_embedding(folder: Path, width: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in ("speaker_encoder.fc.weight", "speaker_encoder.fc.bias"):
        part = tensors[name]
        tensors[name] = np.concatenate([part, -part] * (width // len(part)))[:width]
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["speaker_encoder_config"]["enc_dim"] = width
    (folder / "config.json").write_text(json.dumps(config))


def _add_groups(folder: Path, groups: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    layers = "encoder.quantizer.acoustic_residual_vector_quantizer.layers"
    config = json.loads((folder / "config.json").read_text())
    present = config["encoder_config"]["num_quantizers"] - 1
    for layer in range(present, groups - 1):
        for part in ("cluster_usage", "embed_sum", "initialized"):
            name = f"codebook.{part}"
            tensors[f"{layers}.{layer}.{name}"] = tensors[f"{layers}.{layer % present}.{name}"].copy()
    save_file(tensors, folder / "model.safetensors")
    config["encoder_config"]["num_quantizers"] = config["encoder_valid_num_quantizers"] = groups
    (folder / "config.json").write_text(json.dumps(config))


def join_codec(folder: Path, codec: Path) -> Path:
    """Put a codec into a talker's checkpoint: one folder with all parts, as the published ones are."""
    shutil.copytree(codec / _TOKENIZER, folder / _TOKENIZER)
    weights = "model.safetensors"
    save_file(load_file(folder / weights) | load_file(codec / weights), folder / weights)
    config = json.loads((folder / "config.json").read_text())
    config["speaker_encoder_config"] = json.loads((codec / "config.json").read_text())["speaker_encoder_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder
