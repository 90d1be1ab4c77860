"""From a checkpoint folder to a thinker."""

from __future__ import annotations

from pathlib import Path

import torch

from omnistage.ar.qwen3.weights import open_weights
from omnistage_thinker.models.qwen3_omni.config import read_config
from omnistage_thinker.models.qwen3_omni.thinker import PREFIX, Thinker


def load_thinker(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Thinker:
    """Load decoder and towers, strictly: every tensor below "thinker." is used.

    Args:
        folder: in the layout of the Hugging Face repositories.
        device: torch's name of it.
        dtype: "float32", "bfloat16" or "float16"; weights of another are converted.

    Raises:
        ConfigError: the folder is no such checkpoint, or a tensor is missing, unexpected or of the wrong shape.
    """
    config = read_config(folder)
    with torch.inference_mode(), open_weights(folder, PREFIX, device=device, dtype=dtype) as weights:
        thinker = Thinker(config, weights.take)
        weights.check_all_taken()
    return thinker
