"""The codec family of the packaged English voice."""

from omnistage_codec.models.hibari.model import HibariState, HibariWave

__all__ = ["HibariState", "HibariWave"]
