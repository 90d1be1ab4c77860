"""The talker: projections of the thinker's rows, and its decoder with experts and positions on three axes."""

from __future__ import annotations

from pathlib import Path

import torch

from omnistage.ar.qwen3.rotary import interleaved
from omnistage.ar.qwen3.weights import WeightSource, open_weights
from omnistage_talker.models.qwen3.embeddings import PREFIX
from omnistage_talker.models.qwen3.projection import Projection
from omnistage_talker.models.qwen3.talker import FrameTalker
from omnistage_talker.models.qwen3_omni.config import OmniTalkerConfig, read_config


class OmniTalker(FrameTalker):
    """A loaded checkpoint's talker with its code predictor.

    Args:
        config: of the checkpoint.
        take: gives its weights.

    Attributes:
        project_text: the thinker's embeddings to rows of the talker.
        project_hidden: its accepted hidden states likewise, where the prompt holds media.
    """

    def __init__(self, config: OmniTalkerConfig, take: WeightSource) -> None:
        super().__init__(config.frames, take, rotary=interleaved, axes=3)
        self.config = config
        sizes = {
            "inputs": config.thinker_width,
            "inner": config.projection_width,
            "outputs": config.frames.talker.hidden_size,
        }
        with torch.inference_mode():
            self.project_text = Projection(take, f"{PREFIX}text_projection.linear_fc", **sizes)
            self.project_hidden = Projection(take, f"{PREFIX}hidden_projection.linear_fc", **sizes)


def load_talker(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> OmniTalker:
    """Load the talker and its code predictor, strictly: every tensor below "talker." is used.

    Args:
        folder: in the layout of the Hugging Face repositories.
        device: torch's name of it.
        dtype: "float32", "bfloat16" or "float16"; weights of another are converted.

    Raises:
        ConfigError: the folder is no such checkpoint, or a tensor is missing, unexpected or of the wrong shape.
    """
    config = read_config(folder)
    with torch.inference_mode(), open_weights(folder, PREFIX, device=device, dtype=dtype) as weights:
        talker = OmniTalker(config, weights.take)
        weights.check_all_taken()
    return talker
