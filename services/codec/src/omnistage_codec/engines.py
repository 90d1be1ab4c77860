"""The codec's engines, told without loading any of them: this module imports no model library."""

from __future__ import annotations

from pathlib import Path

ENGINES = ("hibari", "qwen3_tts")
"""What `engine` may be in models.yaml."""


def checkpoint_fault(engine: str, checkpoint: Path | None) -> str | None:
    """Why a checkpoint cannot be one of an engine, by its layout alone; None if it may be."""
    if engine != "qwen3_tts":
        return None
    if checkpoint is None:
        return "a qwen3_tts codec engine needs a checkpoint"
    config = checkpoint / "speech_tokenizer" / "config.json"
    return None if config.exists() else f"{checkpoint} has no speech_tokenizer/config.json"
