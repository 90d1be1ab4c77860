"""For processes with this folder in PYTHONPATH: a model's thread stops for good as soon as a file says so.

The file is named after the process and lies in the folder of the environment variable WEDGE. The event loop lives on,
as it does when a driver or a native library never returns.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "WEDGE"
STEPS = {
    "omnistage.ar.runner": ("SamplingRunner", "step"),
    "omnistage_talker.models.hibari.model": ("HibariSpeech", "prepare"),
    "omnistage_codec.models.hibari.model": ("HibariWave", "decode"),
}


class WedgingFinder(importlib.abc.MetaPathFinder):
    """Finds the models' modules as usual, and changes each once it has run."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in STEPS or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = WedgingLoader(spec.loader)
        return spec


class WedgingLoader(importlib.abc.Loader):
    """Runs a module with the loader that it would have had."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        owner, step = STEPS[module.__name__]
        model = getattr(module, owner)
        setattr(model, step, wedging(getattr(model, step)))


def wedging(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that never returns once it is told so."""
    word = Path(os.environ[FOLDER], str(os.getpid()))

    def step_or_wedge(*arguments: Any, **options: Any) -> Any:
        while word.exists():
            time.sleep(0.1)
        return step(*arguments, **options)

    return step_or_wedge


if os.environ.get(FOLDER):
    sys.meta_path.insert(0, WedgingFinder())
