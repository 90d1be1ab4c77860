"""Codec families, one folder each, behind the interface of `base`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.errors import ConfigError
from omnistage_codec.models.base import ReferenceModel, WaveFacts, WaveModel


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a family is loaded. Families without weights take none of it.

    Attributes:
        checkpoint: folder of the checkpoint.
        device: torch's name of the device.
        dtype: element type that the network computes in: "float32", "bfloat16" or "float16".
        batch_invariant: give the same bits whatever is decoded together and however frames are cut.
        references: whether recordings are encoded as well; None: if the checkpoint is made for cloning.
        step_frames: most frames of a request in one pass.
    """

    checkpoint: Path | None = None
    device: str = "cpu"
    dtype: str = "float32"
    batch_invariant: bool = False
    references: bool | None = None
    step_frames: int = 32


@dataclass(frozen=True, kw_only=True)
class LoadedModels:
    """What a family offers: the decoder, and the encoder of recordings if there is one."""

    wave: WaveModel[Any]
    references: ReferenceModel | None = None


def _hibari(_options: ModelOptions) -> LoadedModels:
    from omnistage_codec.models.hibari import HibariWave

    return LoadedModels(wave=HibariWave())


def _qwen3_tts(options: ModelOptions) -> LoadedModels:
    from omnistage_codec.models.qwen3_tts import load

    wave, references = load(options)
    return LoadedModels(wave=wave, references=references)


FAMILIES: dict[str, Callable[[ModelOptions], LoadedModels]] = {"hibari": _hibari, "qwen3_tts": _qwen3_tts}
"""Name in models.yaml (`engine`) -> loader. Loaders import their family, so that none is imported in vain."""


def load_models(family: str, options: ModelOptions | None = None) -> LoadedModels:
    """Load a family's models; blocking. Raises ConfigError if there is no such family, or it cannot be loaded."""
    try:
        load = FAMILIES[family]
    except KeyError:
        raise ConfigError(f"codec engine {family!r} does not exist; there are: {', '.join(FAMILIES)}") from None
    return load(options or ModelOptions())


def load_model(family: str) -> WaveModel[Any]:
    """Load the decoder of a family that needs no options. Raises as `load_models`."""
    return load_models(family).wave


__all__ = ["FAMILIES", "LoadedModels", "ModelOptions", "WaveFacts", "WaveModel", "load_model", "load_models"]
