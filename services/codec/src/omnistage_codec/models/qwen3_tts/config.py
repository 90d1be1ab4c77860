"""What the checkpoint's config files say about the codec and the speaker encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from omnistage.errors import ConfigError

TOKENIZER_FOLDER = "speech_tokenizer"
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"


class _Section(BaseModel):
    """A section of a config file: keys that no computation depends on (dropout, initial scales) are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class DecoderConfig(_Section):
    """`decoder_config`: names as in the file."""

    latent_dim: int
    codebook_dim: int
    codebook_size: int
    decoder_dim: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    num_quantizers: int
    num_semantic_quantizers: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]


class EncoderConfig(_Section):
    """`encoder_config`: names as in the file."""

    codebook_dim: int
    codebook_size: int
    compress: int
    dilation_growth_rate: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    kernel_size: int
    last_kernel_size: int
    norm_eps: float
    num_attention_heads: int
    num_filters: int
    num_hidden_layers: int
    num_key_value_heads: int
    num_quantizers: int
    num_residual_layers: int
    num_semantic_quantizers: int
    residual_kernel_size: int
    rope_theta: float
    sliding_window: int
    upsampling_ratios: tuple[int, ...]


class TokenizerConfig(_Section):
    """`speech_tokenizer/config.json`."""

    model_type: str
    encoder_valid_num_quantizers: int
    input_sample_rate: int
    output_sample_rate: int
    decode_upsample_rate: int
    encode_downsample_rate: int
    decoder_config: DecoderConfig
    encoder_config: EncoderConfig


class SpeakerConfig(_Section):
    """`speaker_encoder_config` of the main config file; defaults are those of the published checkpoints."""

    enc_dim: int = 1024
    sample_rate: int = 24_000
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """The codec's config of a checkpoint folder.

    Raises:
        ConfigError: there is none, it is of another codec, or a value is missing.
    """
    path = folder / TOKENIZER_FOLDER / "config.json"
    data = _read(path)
    if data.get("model_type") != TOKENIZER_TYPE:
        raise ConfigError(f"{path}: model_type {data.get('model_type')!r} is not {TOKENIZER_TYPE!r}")
    try:
        return TokenizerConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_faults(error)}") from error


def read_speaker_config(folder: Path) -> SpeakerConfig | None:
    """The speaker encoder's config; None for checkpoints that have no speaker encoder. Raises ConfigError as above."""
    path = folder / "config.json"
    data = _read(path) if path.exists() else {}
    if data.get("tts_model_type") != "base":
        return None
    try:
        return SpeakerConfig.model_validate(data.get("speaker_encoder_config") or {})
    except ValidationError as error:
        raise ConfigError(f"{path}: {_faults(error)}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no mapping")
    return data


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in faults)
