"""From a checkpoint folder in the published layout to the family's models."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from omnistage.errors import ConfigError
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.placement import make_placement, needed_checkpoint
from omnistage_codec.models.qwen3.weights import Placement, Weights, read_tensors
from omnistage_codec.models.qwen3_tts.config import (
    TOKENIZER_FOLDER,
    TokenizerConfig,
    read_speaker_config,
    read_tokenizer_config,
)
from omnistage_codec.models.qwen3_tts.decoder import Decoder
from omnistage_codec.models.qwen3_tts.encoder import Encoder
from omnistage_codec.models.qwen3_tts.mel import LogMel
from omnistage_codec.models.qwen3_tts.model import Qwen3TTSWave
from omnistage_codec.models.qwen3_tts.references import Qwen3TTSReferences
from omnistage_codec.models.qwen3_tts.speaker import SpeakerEncoder

_FAMILY = "qwen3_tts"


def load(options: ModelOptions) -> tuple[Qwen3TTSWave, Qwen3TTSReferences | None]:
    """The decoder and, where it is wanted, the encoders.

    Raises:
        ConfigError: no checkpoint, one of another model, missing or unexplained weights, an unknown dtype or device.
    """
    checkpoint, placement = needed_checkpoint(options, _FAMILY), make_placement(options)
    config = read_tokenizer_config(checkpoint)
    wave = Qwen3TTSWave(
        load_decoder(checkpoint, config, placement),
        config,
        step_frames=options.step_frames,
        batch_invariant=options.batch_invariant,
    )
    wanted = options.references
    if wanted is None:
        wanted = read_speaker_config(checkpoint) is not None
    if not wanted:
        return wave, None
    return wave, load_references(options)


def load_references(options: ModelOptions) -> Qwen3TTSReferences:
    """The encoders: of waveforms, and of speakers where the checkpoint has one. Raises as `load`."""
    checkpoint, placement = needed_checkpoint(options, _FAMILY), make_placement(options)
    config = read_tokenizer_config(checkpoint)
    encoder, encoder_print = load_encoder(checkpoint, config, placement)
    found = load_speaker(checkpoint, placement)
    return Qwen3TTSReferences(
        encoder,
        None if found is None else found[:2],
        config,
        fingerprint=f"{encoder_print}-{'' if found is None else found[2]}-{options.dtype}",
        batch_invariant=options.batch_invariant,
    )


def load_decoder(checkpoint: Path, config: TokenizerConfig, placement: Placement) -> Decoder:
    """The decoder's network, strictly: every weight below "decoder" is used. Raises ConfigError."""
    weights = Weights(read_tensors(checkpoint / TOKENIZER_FOLDER, "decoder."), placement)
    decoder = Decoder.take(weights.below("decoder"), config.decoder_config)
    weights.check_all_taken()
    if decoder.samples_per_frame != config.decode_upsample_rate:
        raise ConfigError(
            f"decode_upsample_rate is {config.decode_upsample_rate}, but the ratios give {decoder.samples_per_frame}"
        )
    return decoder


def load_encoder(checkpoint: Path, config: TokenizerConfig, placement: Placement) -> tuple[Encoder, str]:
    """The encoder's network, strictly, and the fingerprint of its weights. Raises ConfigError."""
    tensors = read_tensors(checkpoint / TOKENIZER_FOLDER, "encoder.")
    weights = Weights(tensors, placement)
    encoder = Encoder.take(weights.below("encoder"), config)
    weights.check_all_taken()
    return encoder, fingerprint(tensors)


def load_speaker(checkpoint: Path, placement: Placement) -> tuple[SpeakerEncoder, LogMel, str] | None:
    """The speaker encoder, strictly, its spectrogram and its fingerprint; None if there is none. Raises ConfigError."""
    config = read_speaker_config(checkpoint)
    if config is None:
        return None
    tensors = read_tensors(checkpoint, "speaker_encoder.")
    weights = Weights(tensors, placement)
    speaker = SpeakerEncoder.take(weights.below("speaker_encoder"), config)
    weights.check_all_taken()
    return speaker, LogMel(config.mel_dim, config.sample_rate, placement.device), fingerprint(tensors)


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """A name for weights: BLAKE2b over names, types, shapes and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
