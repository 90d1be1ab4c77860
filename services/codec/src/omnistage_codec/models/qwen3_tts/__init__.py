"""Qwen3-TTS: the 12 Hz speech tokenizer (codes to waveform and back) and the speaker encoder."""

from omnistage_codec.models.qwen3.stream import StreamState
from omnistage_codec.models.qwen3_tts.loading import load
from omnistage_codec.models.qwen3_tts.model import Qwen3TTSWave
from omnistage_codec.models.qwen3_tts.references import Qwen3TTSReferences

__all__ = ["Qwen3TTSReferences", "Qwen3TTSWave", "StreamState", "load"]
