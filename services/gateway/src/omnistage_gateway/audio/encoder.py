"""The formats that are served, and the one interface of their encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

Samples = NDArray[Any]
"""[samples] int16, mono."""


class Encoder(Protocol):
    """Encodes one stream. Not thread-safe; one call at a time."""

    @property
    def num_given(self) -> int:
        """Samples whose bytes were given; others are still held back."""
        ...

    def encode(self, samples: Samples) -> bytes:
        """Take the next samples; returns the bytes that are ready (perhaps none)."""
        ...

    def finish(self) -> bytes:
        """No more samples will come; returns the remaining bytes."""
        ...

    def close(self) -> None:
        """Free everything, finished or not. Idempotent."""
        ...


@dataclass(frozen=True)
class AudioFormat:
    """One format of the API.

    Attributes:
        name: as clients write it.
        media_type: of the HTTP answer.
        rates_hz: sample rates that the format can carry, ascending; empty for any.
        codec, container: libavcodec's and libavformat's names; empty where no library is needed.
        sample_format: what the codec takes.
        bit_rate: bits per second at 24 kHz mono; 0 for lossless.
        codec_options, container_options: for an answer that is streamed.
    """

    name: str
    media_type: str
    rates_hz: tuple[int, ...] = ()
    codec: str = ""
    container: str = ""
    sample_format: str = "s16"
    bit_rate: int = 0
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)


_MPEG_RATES = (22050, 24000, 32000, 44100, 48000)
"""mp3 and aac know lower ones too, but there the padding of their streams lasts longer than a tenth of a second."""

FORMATS: Mapping[str, AudioFormat] = {
    entry.name: entry
    for entry in (
        AudioFormat(
            "mp3",
            "audio/mpeg",
            rates_hz=_MPEG_RATES,
            codec="libmp3lame",
            container="mp3",
            sample_format="s16p",
            bit_rate=64_000,
            # Without the bit reservoir a frame is complete by itself and leaves as soon as its samples are there.
            codec_options={"reservoir": "0"},
            container_options={"id3v2_version": "0", "write_xing": "0"},
        ),
        AudioFormat(
            "opus",
            "audio/ogg",
            rates_hz=(8000, 12000, 16000, 24000, 48000),
            codec="libopus",
            container="ogg",
            bit_rate=48_000,
            codec_options={"application": "lowdelay", "frame_duration": "20"},
            # A page of 60 ms (microseconds here) costs 28 bytes; the muxer's own default would hold back a second.
            container_options={"page_duration": "60000"},
        ),
        AudioFormat(
            "aac",
            "audio/aac",
            rates_hz=_MPEG_RATES,
            codec="aac",
            container="adts",
            sample_format="fltp",
            bit_rate=64_000,
        ),
        AudioFormat(
            "flac",
            "audio/flac",
            codec="flac",
            container="flac",
            # 40 ms at 24 kHz; the encoder's own default would hold back 192 ms.
            codec_options={"frame_size": "960"},
        ),
        AudioFormat("wav", "audio/wav"),
        AudioFormat("pcm", "audio/pcm"),
    )
}


def supported_rate(audio_format: AudioFormat, rate_hz: int) -> int:
    """The rate itself if the format can carry it, else the next one above, else the highest."""
    if not audio_format.rates_hz or rate_hz in audio_format.rates_hz:
        return rate_hz
    return next((rate for rate in audio_format.rates_hz if rate > rate_hz), audio_format.rates_hz[-1])


def encoder_for(audio_format: AudioFormat, rate_hz: int, *, whole: bool) -> Encoder:
    """A new encoder.

    Args:
        rate_hz: of the samples; one that the format can carry.
        whole: the answer is sent in one piece: headers then state true sizes, and bytes come only from `finish`.
    """
    from omnistage_gateway.audio.av_encoder import AvEncoder
    from omnistage_gateway.audio.wav import PcmEncoder, WavEncoder

    if audio_format.name == "wav":
        return WavEncoder(rate_hz, whole=whole)
    if audio_format.name == "pcm":
        return PcmEncoder()
    return AvEncoder(audio_format, rate_hz, whole=whole)
