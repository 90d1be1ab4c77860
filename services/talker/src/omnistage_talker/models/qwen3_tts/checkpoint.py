"""From a checkpoint folder to a talker."""

from __future__ import annotations

from pathlib import Path

import torch

from omnistage.ar.qwen3.weights import open_weights
from omnistage.errors import ConfigError
from omnistage_talker.models.qwen3_tts.config import read_config
from omnistage_talker.models.qwen3_tts.talker import Talker


def load_talker(folder: Path, *, device: str = "cpu", dtype: str = "float32", length: int | None = None) -> Talker:
    """Load the talker and its code predictor.

    Args:
        folder: in the layout of the Hugging Face repositories.
        device: torch's name of it.
        dtype: "float32", "bfloat16" or "float16"; weights of another are converted.
        length: positions that are used; None for all that the model was made for.

    Raises:
        ConfigError: the folder is no such checkpoint, or a tensor is missing, unexpected or of the wrong shape.
    """
    config = read_config(folder)
    length = length or config.talker.max_length
    if length > config.talker.max_length:
        raise ConfigError(f"context {length} is more than the model's {config.talker.max_length}")
    with torch.inference_mode(), open_weights(folder, "talker.", device=device, dtype=dtype) as weights:
        talker = Talker(config, weights, length=length)
        weights.check_all_taken()
    return talker
