"""From a checkpoint folder in the published layout to the family's decoder."""

from __future__ import annotations

from pathlib import Path

from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.placement import make_placement, needed_checkpoint
from omnistage_codec.models.qwen3.weights import Placement, Weights, read_tensors
from omnistage_codec.models.qwen3_omni.config import Code2WavConfig, read_config
from omnistage_codec.models.qwen3_omni.decoder import Decoder
from omnistage_codec.models.qwen3_omni.model import Qwen3OmniWave

_PREFIX = "code2wav"


def load(options: ModelOptions) -> Qwen3OmniWave:
    """The decoder.

    Raises:
        ConfigError: no checkpoint, one of another model, missing or unexplained weights, an unknown dtype or device.
    """
    checkpoint, placement = needed_checkpoint(options, "qwen3_omni"), make_placement(options)
    config = read_config(checkpoint)
    return Qwen3OmniWave(
        load_decoder(checkpoint, config, placement),
        config,
        step_frames=options.step_frames,
        batch_invariant=options.batch_invariant,
    )


def load_decoder(checkpoint: Path, config: Code2WavConfig, placement: Placement) -> Decoder:
    """The network, strictly: every weight below "code2wav" is used. Raises ConfigError."""
    weights = Weights(read_tensors(checkpoint, f"{_PREFIX}."), placement)
    decoder = Decoder.take(weights.below(_PREFIX), config)
    weights.check_all_taken()
    return decoder
