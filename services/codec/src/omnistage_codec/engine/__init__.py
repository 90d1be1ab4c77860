"""The codec's engine: which frames are decoded when, and where."""

from omnistage_codec.engine.batches import Frames
from omnistage_codec.engine.coalescing import Coalescing
from omnistage_codec.engine.codec import CodecEngine
from omnistage_codec.engine.engine import DecodeConfig, DecodeEngine
from omnistage_codec.engine.growth import BufferedGrowth, GrowthPolicy
from omnistage_codec.engine.references import ReferenceConfig, ReferenceEngine
from omnistage_codec.engine.timeline import AudioPiece

__all__ = [
    "AudioPiece",
    "BufferedGrowth",
    "Coalescing",
    "CodecEngine",
    "DecodeConfig",
    "DecodeEngine",
    "Frames",
    "GrowthPolicy",
    "ReferenceConfig",
    "ReferenceEngine",
]
