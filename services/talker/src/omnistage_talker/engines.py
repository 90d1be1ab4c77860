"""The talker's engines, told without loading any of them: this module imports no model library."""

from __future__ import annotations

from pathlib import Path

ENGINES = ("hibari", "qwen3_tts")
"""What `engine` may be in models.yaml."""

VOICES = {"hibari": ("heart",)}
"""Voices of the engines that have the same ones with every checkpoint."""


def checkpoint_fault(engine: str, checkpoint: Path | None) -> str | None:
    """Why a checkpoint cannot be one of an engine, by its name alone; None if it may be."""
    if checkpoint is None:
        return "a talker engine needs a checkpoint"
    if engine == "hibari" and checkpoint.suffix != ".onnx":
        return f"{checkpoint} is not an .onnx file"
    if engine == "qwen3_tts" and not (checkpoint / "config.json").exists():
        return f"{checkpoint} is no folder with a config.json"
    return None
