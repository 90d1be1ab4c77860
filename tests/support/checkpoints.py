"""Tiny checkpoints for tests of the whole system."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file

_PARTS = Path(__file__).parents[2] / "services" / "codec" / "tests" / "fixtures" / "qwen3_tts"
_TOKENIZER = "speech_tokenizer"


def tiny_codec(folder: Path) -> Path:
    """A codec with decoder, encoder and speaker encoder, joined from the parts that come with the sources."""
    decoder, encoder = (_PARTS / name / _TOKENIZER for name in ("custom_voice", "base"))
    (folder / _TOKENIZER).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(_PARTS / "base" / name, folder / name)
    tensors = load_file(decoder / "model.safetensors") | load_file(encoder / "model.safetensors")
    save_file(tensors, folder / _TOKENIZER / "model.safetensors")
    config = json.loads((encoder / "config.json").read_text())
    config["decoder_config"] = json.loads((decoder / "config.json").read_text())["decoder_config"]
    (folder / _TOKENIZER / "config.json").write_text(json.dumps(config))
    return folder
