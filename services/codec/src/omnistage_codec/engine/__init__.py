"""The codec's engine: which frames are decoded when, and where."""

from omnistage_codec.engine.batches import Frames, GrowthPolicy
from omnistage_codec.engine.engine import AudioPiece, DecodeConfig, DecodeEngine

__all__ = ["AudioPiece", "DecodeConfig", "DecodeEngine", "Frames", "GrowthPolicy"]
