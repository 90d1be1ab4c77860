"""Talker families, one folder each, behind the interface of `base`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omnistage.errors import ConfigError
from omnistage_talker.models.base import Clause, SpeechFacts, SpeechModel, Utterance
from omnistage_talker.models.frames import FrameModel


def _hibari(checkpoint: Path) -> SpeechModel:
    from omnistage_talker.models.hibari import HibariSpeech

    return HibariSpeech(checkpoint)


FAMILIES: dict[str, Callable[[Path], SpeechModel]] = {"hibari": _hibari}
"""Name in models.yaml (`engine`) -> loader. Loaders import their family, so that none is imported in vain."""


@dataclass(frozen=True, kw_only=True)
class FrameModelOptions:
    """How a family that makes frames one after the other is loaded.

    Attributes:
        device: torch's name of the device.
        dtype: element type that the network computes in: "float32", "bfloat16" or "float16".
        context: positions that a prompt and its frames may have together; None for all that the model was made for.
    """

    device: str = "cpu"
    dtype: str = "float32"
    context: int | None = None


def _qwen3_tts(checkpoint: Path, options: FrameModelOptions) -> FrameModel:
    from omnistage_talker.models.qwen3_tts.model import Qwen3TTS

    return Qwen3TTS(checkpoint, device=options.device, dtype=options.dtype, context=options.context)


FRAME_FAMILIES: dict[str, Callable[[Path, FrameModelOptions], FrameModel]] = {"qwen3_tts": _qwen3_tts}
"""The same for families that make frames one after the other."""


def load_model(family: str, checkpoint: Path) -> SpeechModel:
    """Load a family's model; blocking.

    Raises:
        ConfigError: there is no such family, or the checkpoint is not one of it.
    """
    try:
        load = FAMILIES[family]
    except KeyError:
        known = ", ".join((*FAMILIES, *FRAME_FAMILIES))
        raise ConfigError(f"talker engine {family!r} does not exist; there are: {known}") from None
    return load(checkpoint)


__all__ = [
    "FAMILIES",
    "FRAME_FAMILIES",
    "Clause",
    "FrameModel",
    "FrameModelOptions",
    "SpeechFacts",
    "SpeechModel",
    "Utterance",
    "load_model",
]
