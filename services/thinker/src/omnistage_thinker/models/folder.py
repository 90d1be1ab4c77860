"""Llama checkpoints in Hugging Face folders: config.json, *.safetensors, tokenizer.json, tokenizer_config.json."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from omnistage.ar.qwen3.config import read_json
from omnistage.errors import ConfigError
from omnistage_thinker.models.llama import LlamaConfig, LlamaModel
from omnistage_thinker.models.tokenizer import Tokenizer
from omnistage_thinker.models.tokenizer_files import load_tokenizer


def load_folder(path: Path, *, device: str, dtype: torch.dtype) -> tuple[LlamaModel, Tokenizer]:
    """Read a folder whose config names LlamaForCausalLM.

    Raises:
        ConfigError: another architecture, an option that is not supported, or missing files.
    """
    values = read_json(path / "config.json")
    config = _load_config(values)
    tokenizer = load_tokenizer(path, values)
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(str(f), "pt")) for f in sorted(path.glob("*.safetensors"))]
        owners = {name: file for file in files for name in file.keys()}  # noqa: SIM118

        def weight(name: str) -> Tensor:
            if name not in owners:
                raise ConfigError(f"{path}: the tensor {name} is missing")
            tensor: Tensor = owners[name].get_tensor(name)
            return tensor.float()

        tied = bool(values.get("tie_word_embeddings", False)) or "lm_head.weight" not in owners
        model = LlamaModel(config, weight, tied=tied, device=device, dtype=dtype)
    return model, tokenizer


def _load_config(values: dict[str, Any]) -> LlamaConfig:
    if "LlamaForCausalLM" not in values.get("architectures", []):
        raise ConfigError(f"architectures {values.get('architectures')} are not supported, only LlamaForCausalLM")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or values.get("attention_bias") or values.get("mlp_bias"):
        raise ConfigError(f"rotary type {kind!r} or biases are not supported")
    if values.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"activation {values['hidden_act']!r} is not supported")
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    return LlamaConfig(
        vocab_size=int(values["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(values["intermediate_size"]),
        num_layers=int(values["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        max_length=int(values["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0),
        norm_eps=float(values["rms_norm_eps"]),
    )
