"""From a file or folder to a model and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from omnistage.errors import ConfigError
from omnistage_thinker.models.llama import LlamaModel
from omnistage_thinker.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        model: the network with its weights.
        tokenizer: text to token ids and back, and the chat template.
    """

    model: LlamaModel
    tokenizer: Tokenizer


def load_checkpoint(path: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Load a GGUF file or a Hugging Face folder of a Llama model.

    Raises:
        ConfigError: it is of another kind, or damaged.
    """
    if path.is_dir():
        from omnistage_thinker.models.folder import load_folder

        model, tokenizer = load_folder(path, device=device, dtype=dtype)
    elif path.suffix == ".gguf":
        from omnistage_thinker.models.gguf_loader import load_gguf

        model, tokenizer = load_gguf(path, device=device, dtype=dtype)
    else:
        raise ConfigError(f"checkpoint {path}: neither a .gguf file nor a folder")
    return Checkpoint(model, tokenizer)
