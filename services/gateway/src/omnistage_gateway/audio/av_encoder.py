"""Encoders of libavcodec through PyAV, muxed into memory."""

from __future__ import annotations

import io
import struct

import av

from omnistage_gateway.audio.av_frames import frame_of, mapped_errors
from omnistage_gateway.audio.encoder import AudioFormat, Samples


class _Spill:
    """A file that can only be written: what a muxer sees of a network stream, so that it never goes back."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._bytes)
        self._bytes.clear()
        return data


class AvEncoder:
    """One stream of one format; every packet leaves the muxer at once.

    The encoders of mp3 and aac put their own delay before the first sample and fill the last frame, and raw mp3 and
    ADTS streams cannot say so: what is decoded is longer by 1105 to 1680 and 1024 to 2047 samples.
    A whole mp3 carries a header that says so, and is exact.
    """

    def __init__(self, audio_format: AudioFormat, rate_hz: int, *, whole: bool) -> None:
        self._format = audio_format
        self._rate_hz = rate_hz
        self._position = 0
        self.num_given = 0
        self._lead_s = 0.0
        self._spill = None if whole else _Spill()
        self._file = self._spill or io.BytesIO()
        # Bit-exact: without it an Ogg stream gets a random serial number, and equal requests differ.
        options = {"flush_packets": "1", "fflags": "+bitexact", **({} if whole else audio_format.container_options)}
        with mapped_errors(f"the {audio_format.name} encoder"):
            self._container: av.container.OutputContainer | None = av.open(
                self._file, "w", format=audio_format.container, options=options
            )
            stream = self._container.add_stream(
                audio_format.codec, rate=rate_hz, options=dict(audio_format.codec_options)
            )
            assert isinstance(stream, av.AudioStream)
            self._stream = stream
            context = stream.codec_context
            context.layout = "mono"
            context.format = audio_format.sample_format
            if audio_format.bit_rate:
                context.bit_rate = _bit_rate(audio_format, rate_hz)

    def encode(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        frame = frame_of(samples, self._rate_hz, self._position)
        self._position += len(samples)
        return self._write(frame)

    def finish(self) -> bytes:
        if self._position == 0:
            return b""
        rest = self._write(None)
        self.close()
        self.num_given = self._position
        return rest + self._taken(final=True)

    def close(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            with mapped_errors(f"the {self._format.name} encoder"):
                container.close()

    def _write(self, frame: av.AudioFrame | None) -> bytes:
        assert self._container is not None, "encoding after close"
        with mapped_errors(f"the {self._format.name} encoder"):
            end_s = 0.0
            for packet in self._stream.encode(frame):
                if packet.pts is not None and packet.duration is not None:
                    # Counted from the first sample: the delay that the encoder puts before it has negative times.
                    self._lead_s = max(self._lead_s, float(-packet.pts * packet.time_base))
                    end_s = float((packet.pts + packet.duration) * packet.time_base)
                self._container.mux(packet)
        data = self._taken()
        if data:
            if self._format.container == "ogg":
                end_s = _last_page_s(data) - self._lead_s
            self.num_given = max(self.num_given, min(self._position, round(end_s * self._rate_hz)))
        return data

    def _taken(self, *, final: bool = False) -> bytes:
        if self._spill is not None:
            return self._spill.take()
        return self._file.getvalue() if final and isinstance(self._file, io.BytesIO) else b""


def _last_page_s(data: bytes) -> float:
    """Where the last page in some bytes of Ogg ends; 0 if none begins there. The muxer holds up to two pages back.

    RFC 3533: a page begins with "OggS", a version, a type, and the position of its end, 64 bits. RFC 7845: Opus
    counts 1/48000 s, what the encoder puts before the first sample included.
    """
    begin = data.rfind(b"OggS\0")
    if begin < 0 or begin + 14 > len(data):
        return 0.0
    position: int = struct.unpack_from("<q", data, begin + 6)[0]
    return position / 48_000


def _bit_rate(audio_format: AudioFormat, rate_hz: int) -> int:
    """The format's bit rate, scaled with the sample rate where it is lower (MPEG-2.5 has no more than 64 kbit/s)."""
    return max(16_000, min(audio_format.bit_rate, audio_format.bit_rate * rate_hz // 24_000 // 8000 * 8000))
