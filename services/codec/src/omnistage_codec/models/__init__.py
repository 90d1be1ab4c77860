"""Codec families, one folder each, behind the interface of `base`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omnistage.errors import ConfigError
from omnistage_codec.models.base import WaveFacts, WaveModel


def _hibari() -> WaveModel[Any]:
    from omnistage_codec.models.hibari import HibariWave

    return HibariWave()


FAMILIES: dict[str, Callable[[], WaveModel[Any]]] = {"hibari": _hibari}
"""Name in models.yaml (`engine`) -> loader. Loaders import their family, so that none is imported in vain."""


def load_model(family: str) -> WaveModel[Any]:
    """Load a family's model. Raises ConfigError if there is no such family."""
    try:
        load = FAMILIES[family]
    except KeyError:
        raise ConfigError(f"codec engine {family!r} does not exist; there are: {', '.join(FAMILIES)}") from None
    return load()


__all__ = ["FAMILIES", "WaveFacts", "WaveModel", "load_model"]
