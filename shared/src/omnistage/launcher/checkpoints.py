"""Where the checkpoint of an engine lies, without loading it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

PACKAGE, HUB = "package:", "hub:"


@dataclass(frozen=True)
class Located:
    """Attributes:
    found: whether the engine can be loaded from here now.
    where: the path, or why there is none.
    fetched_later: not here, but the engine may fetch it at its first start.
    """

    found: bool
    where: str
    fetched_later: bool = False


def locate(checkpoint: str) -> Located:
    """Find "package:NAME/FILE", "hub:ORG/NAME@REVISION" or a path."""
    if checkpoint.startswith(PACKAGE):
        return _in_package(checkpoint.removeprefix(PACKAGE))
    if checkpoint.startswith(HUB):
        return _in_hub_cache(checkpoint.removeprefix(HUB))
    path = Path(checkpoint)
    if path.is_dir() and not any(path.iterdir()):
        return Located(False, f"{path} is empty")
    return Located(True, str(path)) if path.exists() else Located(False, f"{path} does not exist")


def _in_package(name: str) -> Located:
    package, _, file = name.partition("/")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Located(False, f"the package {package!r} is not installed")
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / file
        if path.exists():
            return Located(True, str(path))
    return Located(False, f"the package {package!r} has no file {file!r}")


def _in_hub_cache(name: str) -> Located:
    repository, _, revision = name.partition("@")
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return Located(False, "the package 'huggingface_hub' is not installed")
    snapshots = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "snapshots"
    kept = [path for path in snapshots.glob(f"{revision or '*'}") if any(path.iterdir())]
    if kept:
        return Located(True, str(kept[0]))
    return Located(False, f"not in {HF_HUB_CACHE}", fetched_later=True)
