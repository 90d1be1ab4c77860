"""The thinker's engines, told without loading any of them: this module imports no model library."""

from __future__ import annotations

from pathlib import Path

ENGINES = ("torch",)
"""What `engine` may be in models.yaml."""


def checkpoint_fault(_engine: str, checkpoint: Path | None) -> str | None:
    """Why a checkpoint cannot be one of an engine, by its name and layout alone; None if it may be."""
    if checkpoint is None:
        return "a thinker engine needs a checkpoint"
    if checkpoint.is_dir():
        return None if (checkpoint / "config.json").exists() else f"{checkpoint} has no config.json"
    return None if checkpoint.suffix == ".gguf" else f"{checkpoint} is neither a .gguf file nor a folder"
