"""From a file or folder to a model and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnistage.ar.qwen3.config import read_json
from omnistage.ar.qwen3.weights import DTYPES
from omnistage.errors import ConfigError
from omnistage_thinker.models.base import TextModel
from omnistage_thinker.models.tokenizer import Tokenizer

OMNI = "qwen3_omni_moe"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        model: the network with its weights.
        tokenizer: text to token ids and back, and the chat template.
    """

    model: TextModel
    tokenizer: Tokenizer


def load_checkpoint(path: Path, *, device: str = "cpu", dtype: str = "float32") -> Checkpoint:
    """Load a GGUF file of a Llama model, or a Hugging Face folder of a family that there is.

    Args:
        path: the file or folder.
        device: torch's name of it.
        dtype: "float32", "bfloat16" or "float16": in what it computes.

    Raises:
        ConfigError: it is of another kind, or damaged.
    """
    model: TextModel
    if path.is_dir() and read_json(path / "config.json").get("model_type") == OMNI:
        from omnistage_thinker.models.qwen3_omni.model import load_omni

        model, tokenizer = load_omni(path, device=device, dtype=dtype)
    elif path.is_dir():
        from omnistage_thinker.models.folder import load_folder

        model, tokenizer = load_folder(path, device=device, dtype=DTYPES[dtype])
    elif path.suffix == ".gguf":
        from omnistage_thinker.models.gguf_loader import load_gguf

        model, tokenizer = load_gguf(path, device=device, dtype=DTYPES[dtype])
    else:
        raise ConfigError(f"checkpoint {path}: neither a .gguf file nor a folder")
    return Checkpoint(model, tokenizer)
