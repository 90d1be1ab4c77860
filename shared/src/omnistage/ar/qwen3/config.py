"""What a section of `config.json` says about one Qwen3 decoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Layers whose perceptron is a choice of experts.

    Attributes:
        count: experts of a layer.
        chosen: experts that a token goes through.
        width: of an expert.
        normalized: whether the weights of the chosen ones are made to sum to one.
        shared_width: of the expert that every token goes through; 0 if there is none.
        dense_layers: layers without experts.
    """

    count: int
    chosen: int
    width: int
    normalized: bool
    shared_width: int
    dense_layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and constants of a Qwen3 decoder.

    Attributes:
        vocab_size: of the tokens that it chooses from.
        max_length: positions that it was made for.
        norm_eps: added to the mean square in RMSNorm.
        sections: pairs of channels that turn by each of three positions (time, height, width), where stated.
        experts: None where all layers are dense.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    rope_theta: float
    norm_eps: float
    sections: tuple[int, int, int] | None = None
    experts: ExpertsConfig | None = None


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Around the reading of a configuration's values: what is missing or wrong is said of its file.

    Raises:
        ConfigError: a key is missing, or a value is of the wrong kind.
    """
    try:
        yield
    except KeyError as error:
        raise ConfigError(f"{path}: the key {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no JSON object")
    return values


def decoder_config(values: dict[str, Any]) -> DecoderConfig:
    """Read a section.

    Raises:
        ConfigError: it asks for what is not supported.
        KeyError, TypeError, ValueError: a key is missing, or its value is of another kind.
    """
    scaling = values.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default" or values.get("attention_bias"):
        raise ConfigError(f"rotary type {kind!r} or biases of attention are not supported")
    if values.get("hidden_act", "silu") != "silu" or values.get("use_sliding_window"):
        raise ConfigError(f"activation {values.get('hidden_act')!r} or sliding windows are not supported")
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    head_dim = int(values.get("head_dim") or hidden // heads)
    kv_heads = int(values.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ConfigError(f"{heads} heads cannot share {kv_heads} key-value heads")
    return DecoderConfig(
        vocab_size=int(values["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(values["intermediate_size"]),
        num_layers=int(values["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_length=int(values["max_position_embeddings"]),
        rope_theta=float(values["rope_theta"]),
        norm_eps=float(values["rms_norm_eps"]),
        sections=_sections(scaling.get("mrope_section"), head_dim),
        experts=_experts(values) if values.get("num_experts") else None,
    )


def _sections(section: Any, head_dim: int) -> tuple[int, int, int] | None:
    if section is None:
        return None
    if len(section) != 3 or 2 * sum(section) != head_dim:
        raise ConfigError(f"mrope_section {section} does not fill head_dim {head_dim}")
    time, height, width = (int(size) for size in section)
    return time, height, width


def _experts(values: dict[str, Any]) -> ExpertsConfig:
    count, chosen = int(values["num_experts"]), int(values["num_experts_per_tok"])
    if not 1 <= chosen <= count:
        raise ConfigError(f"{chosen} experts cannot be chosen from {count}")
    every = int(values.get("decoder_sparse_step") or 1)
    stated = {int(layer) for layer in values.get("mlp_only_layers") or ()}
    skipped = {layer for layer in range(int(values["num_hidden_layers"])) if (layer + 1) % every}
    return ExpertsConfig(
        count=count,
        chosen=chosen,
        width=int(values["moe_intermediate_size"]),
        normalized=bool(values["norm_topk_prob"]),
        shared_width=int(values.get("shared_expert_intermediate_size") or 0),
        dense_layers=frozenset(stated | skipped),
    )
