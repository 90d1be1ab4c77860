"""Talker families, one folder each, behind the interface of `base`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omnistage.errors import ConfigError
from omnistage_talker.models.base import Clause, SpeechFacts, SpeechModel, Utterance


def _hibari(checkpoint: Path) -> SpeechModel:
    from omnistage_talker.models.hibari import HibariSpeech

    return HibariSpeech(checkpoint)


FAMILIES: dict[str, Callable[[Path], SpeechModel]] = {"hibari": _hibari}
"""Name in models.yaml (`engine`) -> loader. Loaders import their family, so that none is imported in vain."""


def load_model(family: str, checkpoint: Path) -> SpeechModel:
    """Load a family's model; blocking.

    Raises:
        ConfigError: there is no such family, or the checkpoint is not one of it.
    """
    try:
        load = FAMILIES[family]
    except KeyError:
        raise ConfigError(f"talker engine {family!r} does not exist; there are: {', '.join(FAMILIES)}") from None
    return load(checkpoint)


__all__ = ["FAMILIES", "Clause", "SpeechFacts", "SpeechModel", "Utterance", "load_model"]
