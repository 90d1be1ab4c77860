"""Voices that clients bring along, and the consents to use them: kept by the broker, known to every gateway."""

from omnistage_gateway.voices.library import VoiceLibrary, VoiceLimits
from omnistage_gateway.voices.records import Consent, StoredEmbedding, StoredSound, StoredVoice

__all__ = ["Consent", "StoredEmbedding", "StoredSound", "StoredVoice", "VoiceLibrary", "VoiceLimits"]
