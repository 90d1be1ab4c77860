"""Makes tiny checkpoints with random weights in the layout of the published ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import torch
from safetensors.torch import save_file
from torch import Tensor

from omnistage.ar.qwen3.weights import Weights
from omnistage_talker.models.qwen3_tts.config import read_config
from omnistage_talker.models.qwen3_tts.talker import Talker

FIXTURES = Path(__file__).parent / "fixtures"
CONFIG_FROM = FIXTURES / "qwen3_tts" / "custom_voice"


class _Maker:
    """Stands in for `Weights`: makes what is asked for, the same in whatever order."""

    def __init__(self, seed: int) -> None:
        self.made: dict[str, Tensor] = {}
        self._seed = seed

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(crc32(name.encode()) + self._seed)
        weight = torch.randn(shape, generator=generator)
        if "norm" in name:
            weight = 1 + 0.1 * weight
        elif "embedding" not in name:
            weight = weight * (2.0 if "head" in name else 1.5) * shape[-1] ** -0.5
        self.made[name] = weight
        return weight


def make_checkpoint(folder: Path, *, seed: int = 1, end_scale: float = 1.0, **config: Any) -> Path:
    """A checkpoint folder.

    Args:
        folder: where.
        seed: of the weights.
        end_scale: by how much the end token's logits are larger than others; from 2 on answers end by themselves.
        config: what differs from the usual configuration, at its top level.
    """
    folder.mkdir(parents=True)
    for file in CONFIG_FROM.iterdir():
        shutil.copy(file, folder)
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    maker = _Maker(seed)
    parsed = read_config(folder)
    Talker(parsed, cast("Weights", maker), length=16)
    with torch.inference_mode():
        maker.made["talker.codec_head.weight"][parsed.codec.eos] *= end_scale
    save_file(maker.made, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
