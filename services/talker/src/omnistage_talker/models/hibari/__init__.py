"""The talker family of the packaged English voice."""

from omnistage_talker.models.hibari.model import HibariSpeech

__all__ = ["HibariSpeech"]
