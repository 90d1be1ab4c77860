"""Which container some bytes are, by their first bytes: what a client says about them is not believed.

libav's own guess is not asked: among what it knows are playlists and scripts that make it open other files.
"""

from __future__ import annotations

_ID3_HEADER = 10
_MPEG_SYNC = 0xFFE0


def container_of(data: bytes) -> str | None:
    """libav's name of the demuxer for wav, flac, ogg, mp3, aac (ADTS), webm or mp4; None for anything else."""
    head = data[:12]
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    for magic, name in ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1aE\xdf\xa3", "matroska")):
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return "mov"
    place = _after_tags(data)
    return _mpeg(data[place : place + 2])


def _after_tags(data: bytes) -> int:
    """Where ID3v2 tags end (id3.org, version 2.4, section 3.1): their sizes are written in sevens of bits."""
    place = 0
    while data[place : place + 3] == b"ID3" and len(data) >= place + _ID3_HEADER:
        size = 0
        for byte in data[place + 6 : place + _ID3_HEADER]:
            size = size << 7 | byte & 0x7F
        place += _ID3_HEADER + size
    return place


def _mpeg(head: bytes) -> str | None:
    """By the first two bytes of a frame: 11 set bits, then the layer, which is 0 for AAC (ISO 11172-3, 13818-7)."""
    word = int.from_bytes(head, "big") if len(head) == 2 else 0
    if word & _MPEG_SYNC != _MPEG_SYNC:
        return None
    layer = word >> 1 & 3
    if layer == 0:
        return "aac" if word & 0xFFF0 == 0xFFF0 else None
    return "mp3"
