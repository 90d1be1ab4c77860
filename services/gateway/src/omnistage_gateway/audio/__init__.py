"""Samples to what clients asked for: stretch, resample, encode. Streaming, one chain per request, no event loop."""

from omnistage_gateway.audio.encoder import FORMATS, AudioFormat, Encoder, Samples, encoder_for, supported_rate
from omnistage_gateway.audio.pool import EncoderPool, PooledTranscoder
from omnistage_gateway.audio.transcode import DEFAULT_RATE_HZ, Transcoder, early_cut

__all__ = [
    "DEFAULT_RATE_HZ",
    "FORMATS",
    "AudioFormat",
    "Encoder",
    "EncoderPool",
    "PooledTranscoder",
    "Samples",
    "Transcoder",
    "early_cut",
    "encoder_for",
    "supported_rate",
]
