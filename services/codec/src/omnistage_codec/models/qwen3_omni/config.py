"""What a checkpoint's config file says about code2wav."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from omnistage.errors import ConfigError

MODEL_TYPE = "qwen3_omni_moe"


class Code2WavConfig(BaseModel):
    """`code2wav_config`: names as in the file. Keys that no computation depends on are ignored.

    Attributes:
        codebook_size: of every group; the file's `semantic_codebook_size` is of no effect.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    codebook_size: int
    decoder_dim: int
    hidden_size: int
    intermediate_size: int
    head_dim: int | None = None
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    num_quantizers: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class _Checkpoint(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model_type: str
    enable_audio_output: bool = True
    code2wav_config: Code2WavConfig


def read_config(folder: Path) -> Code2WavConfig:
    """The codec's config of a checkpoint folder.

    Raises:
        ConfigError: there is none, it is of another model or of one that does not speak, or a value is missing.
    """
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    kind = data.get("model_type") if isinstance(data, dict) else None
    if kind != MODEL_TYPE:
        raise ConfigError(f"{path}: model_type {kind!r} is not {MODEL_TYPE!r}")
    if data.get("enable_audio_output") is False:
        raise ConfigError(f"{path}: the checkpoint does not speak: enable_audio_output is false")
    try:
        return _Checkpoint.model_validate(data).code2wav_config
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        told = "; ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in faults)
        raise ConfigError(f"{path}: {told}") from error
