"""What `config.json` of a Qwen3-Omni checkpoint says about the thinker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.ar.qwen3.config import DecoderConfig, decoder_config, faults_of, read_json
from omnistage.ar.qwen3.positions import MediaIds
from omnistage.errors import ConfigError

MODEL_TYPE = "qwen3_omni_moe"


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The audio tower.

    Attributes:
        width, inner, heads, layers: of its transformer.
        channels: of the convolutions.
        mel_bins: rows of a spectrogram.
        output_width: of its results.
        chunk_frames: columns of a spectrogram that are convolved together.
        window_chunks: chunks that attend to one another.
    """

    width: int
    inner: int
    heads: int
    layers: int
    channels: int
    mel_bins: int
    output_width: int
    chunk_frames: int
    window_chunks: int


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower.

    Attributes:
        width, inner, heads, layers: of its transformer.
        channels, patch_frames, patch_size: a patch is so many colours, frames, and rows and columns of pixels.
        merge_size: so many rows and columns of patches become one result.
        output_width: of its results.
        grid_size: rows and columns of the learned positions.
        deep_layers: those whose output goes to the decoder's first layers.
    """

    width: int
    inner: int
    heads: int
    layers: int
    channels: int
    patch_frames: int
    patch_size: int
    merge_size: int
    output_width: int
    grid_size: int
    deep_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThinkerConfig:
    """The thinker of a checkpoint.

    Attributes:
        text: the decoder.
        audio, vision: the towers.
        ids: tokens of media.
        positions_per_second: how far the time axis moves in a second of video.
        speech_marks: tokens that begin, end and pad speech; None where there is no talker.
        accept_layer: whose output the talker takes (1 is the first layer's); None where there is no talker.
    """

    text: DecoderConfig
    audio: AudioConfig
    vision: VisionConfig
    ids: MediaIds
    positions_per_second: int
    accept_layer: int | None
    speech_marks: tuple[int, int, int] | None = None


def read_config(folder: Path) -> ThinkerConfig:
    """Read a checkpoint folder's configuration.

    Raises:
        ConfigError: the file cannot be read, a key is missing, or it asks for what is not supported.
    """
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != MODEL_TYPE:
        raise ConfigError(f"{path}: model_type {values.get('model_type')!r} is not supported, only {MODEL_TYPE!r}")
    with faults_of(path):
        return _config(values)


def _config(values: dict[str, Any]) -> ThinkerConfig:
    thinker = values["thinker_config"]
    text = decoder_config(thinker["text_config"])
    if thinker["text_config"].get("tie_word_embeddings"):
        raise ConfigError("tie_word_embeddings is not supported")
    accept = None
    if values.get("enable_audio_output", True):
        accept = int(values["talker_config"]["accept_hidden_layer"])
        if not 1 <= accept <= text.num_layers:
            raise ConfigError(f"accept_hidden_layer {accept} is none of {text.num_layers} layers")
    return ThinkerConfig(
        text=text,
        audio=_audio(thinker["audio_config"]),
        vision=_vision(thinker["vision_config"]),
        ids=MediaIds(
            audio=int(thinker["audio_token_id"]),
            image=int(thinker["image_token_id"]),
            video=int(thinker["video_token_id"]),
            audio_start=int(thinker["audio_start_token_id"]),
            vision_start=int(thinker["vision_start_token_id"]),
        ),
        positions_per_second=int(thinker["position_id_per_seconds"]),
        accept_layer=accept,
        speech_marks=_marks(values) if accept is not None else None,
    )


def _marks(values: dict[str, Any]) -> tuple[int, int, int] | None:
    begin, end, padding = (values.get(f"tts_{name}_token_id") for name in ("bos", "eos", "pad"))
    return None if begin is None or end is None or padding is None else (int(begin), int(end), int(padding))


def _audio(values: dict[str, Any]) -> AudioConfig:
    if values.get("activation_function", "gelu") != "gelu":
        raise ConfigError(f"activation {values['activation_function']!r} of the audio tower is not supported")
    chunk = 2 * int(values["n_window"])
    return AudioConfig(
        width=int(values["d_model"]),
        inner=int(values["encoder_ffn_dim"]),
        heads=int(values["encoder_attention_heads"]),
        layers=int(values["encoder_layers"]),
        channels=int(values["downsample_hidden_size"]),
        mel_bins=int(values["num_mel_bins"]),
        output_width=int(values["output_dim"]),
        chunk_frames=chunk,
        window_chunks=max(1, int(values["n_window_infer"]) // chunk),
    )


def _vision(values: dict[str, Any]) -> VisionConfig:
    if values.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ConfigError(f"activation {values['hidden_act']!r} of the vision tower is not supported")
    positions = int(values["num_position_embeddings"])
    side = round(positions**0.5)
    if side * side != positions:
        raise ConfigError(f"num_position_embeddings {positions} is no square")
    return VisionConfig(
        width=int(values["hidden_size"]),
        inner=int(values["intermediate_size"]),
        heads=int(values["num_heads"]),
        layers=int(values["depth"]),
        channels=int(values["in_channels"]),
        patch_frames=int(values["temporal_patch_size"]),
        patch_size=int(values["patch_size"]),
        merge_size=int(values["spatial_merge_size"]),
        output_width=int(values["out_hidden_size"]),
        grid_size=side,
        deep_layers=tuple(int(layer) for layer in values["deepstack_visual_indexes"]),
    )
