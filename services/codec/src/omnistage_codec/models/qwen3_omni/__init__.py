"""Qwen3-Omni: code2wav, codes to waveform."""

from omnistage_codec.models.qwen3_omni.loading import load
from omnistage_codec.models.qwen3_omni.model import Qwen3OmniWave

__all__ = ["Qwen3OmniWave", "load"]
