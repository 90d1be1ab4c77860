"""Finding the fixtures of a model family below a folder."""

from __future__ import annotations

import json
from pathlib import Path

FIXTURES = "fixtures"
"""Folder of the recorded tensors, beside the checkpoints that made them."""


def family_folders(folder: Path, model_type: str) -> list[Path]:
    """Folders that hold fixtures and a checkpoint of the family: the folder itself, or those right below it.

    Args:
        folder: what the user named.
        model_type: as the checkpoint's config.json states it.
    """
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [path for path in candidates if (path / FIXTURES).is_dir() and model_type in _model_types(path)]


def _model_types(folder: Path) -> set[str]:
    return {str(json.loads(path.read_text()).get("model_type")) for path in sorted(folder.glob("*/config.json"))}
