"""For processes with this folder in PYTHONPATH: the voice's model dies of a word, as a fault in native code would."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "omnistage_talker.models.hibari.model"
WORD = "xylophone"
EXIT_CODE = 86


class CrashingFinder(importlib.abc.MetaPathFinder):
    """Finds the model's module as usual, and changes it once it has run."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = CrashingLoader(spec.loader)
        return spec


class CrashingLoader(importlib.abc.Loader):
    """Runs a module with the loader that it would have had."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        model = module.HibariSpeech
        prepare = model.prepare

        def prepare_or_die(own: Any, clause: Any, *, lenient: bool) -> Any:
            if WORD in clause.text:
                os._exit(EXIT_CODE)
            return prepare(own, clause, lenient=lenient)

        model.prepare = prepare_or_die


sys.meta_path.insert(0, CrashingFinder())
