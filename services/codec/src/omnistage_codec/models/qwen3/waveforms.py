"""A decoder beside recorded waveforms, in the golden layout.

codes_T                          [groups, T], the input of all that follows
wave_T                           the whole decode; also streamed here in steps
chunked_T_cC_lL_*                in chunks of C frames with L frames of context, as the reference streams
default_decode_T_*               in the chunks that the reference takes by itself
frame_rms_T                      loudness of each whole frame of the whole decode
batch_codes_X, batch_wave_X      decoded together

A name may end in the part of the samples that was kept: frames_A_B, samples_A_B, first_N, second_chunk_first_N; or in
frame_rms, the loudness of each whole frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnistage.errors import OmnistageError
from omnistage.parity import Comparison, Tolerance, compare
from omnistage_codec.models.base import Samples, Step
from omnistage_codec.models.qwen3.stream import StreamedWave

Recorded = Mapping[str, NDArray[Any]]

_DEFAULT_CHUNKS = (300, 25)
"""Frames of a chunk and of its left context in the reference's own decoding."""

_STREAMED = (1, 4, 25)

_KIND = re.compile(
    r"(?P<kind>wave|frame_rms|chunked|default_decode)_(?P<frames>\d+)(_c(?P<chunk>\d+)_l(?P<left>\d+))?(_(?P<part>.*))?$"
)
_BETWEEN = re.compile(r"(?P<unit>frames|samples)_(?P<first>\d+)_(?P<end>\d+)$")
_FIRST = re.compile(r"(?P<second>second_chunk_)?first_(?P<count>\d+)$")


def named(name: str, rows: Iterator[Comparison]) -> Iterator[Comparison]:
    """Rows whose parts begin with the name of the file."""
    for row in rows:
        yield replace(row, part=f"{name}: {row.part}")


def to_frames(recorded: NDArray[Any]) -> NDArray[np.int32]:
    """Recorded [groups, frames] to our [frames, groups]."""
    return np.ascontiguousarray(recorded.T, np.int32)


def check_waveforms(wave: StreamedWave, recorded: Recorded) -> Iterator[Comparison]:
    """Every recorded waveform, part of one, or loudness per frame; whole, in chunks with context, in a batch."""
    for name, expected in recorded.items():
        of = _KIND.match(name)
        if of is None:
            continue
        codes = to_frames(recorded[f"codes_{of['frames']}"])
        chunks = in_chunks(wave, codes, *_chunk_sizes(of, len(codes)))
        found = _kept(chunks, of, wave.facts.samples_per_frame)
        yield compare(name, found, expected, Tolerance.WAVEFORM)
        if name == f"wave_{of['frames']}":
            for size in _STREAMED:
                yield compare(f"{name} in steps of {size}", streamed(wave, codes, size), expected, Tolerance.WAVEFORM)
    yield from _batch(wave, recorded)


def in_chunks(wave: StreamedWave, codes: NDArray[np.int32], chunk: int, left: int) -> list[Samples]:
    """Each chunk anew, warmed with the frames before it, as the reference decodes long answers."""
    parts = []
    for start in range(0, len(codes), chunk):
        state = wave.new_state(seed=0, voice="", context=codes[max(0, start - left) : start])
        frames = codes[start : start + chunk]
        parts.append(wave.decode(state, frames, segment=0, segment_frame=0, segment_end=True))
    return parts


def streamed(wave: StreamedWave, codes: NDArray[np.int32], size: int) -> Samples:
    """One stream, so many frames a step."""
    state, parts = wave.new_state(seed=0, voice=""), []
    for start in range(0, len(codes), size):
        frames, end = codes[start : start + size], start + size >= len(codes)
        parts.append(wave.decode(state, frames, segment=0, segment_frame=start, segment_end=end))
    return np.concatenate(parts)


def _chunk_sizes(of: re.Match[str], frames: int) -> tuple[int, int]:
    """Frames of a chunk and of its left context."""
    if of["chunk"] is not None:
        return int(of["chunk"]), int(of["left"])
    return _DEFAULT_CHUNKS if of["kind"] == "default_decode" else (frames, 0)


def _kept(chunks: list[Samples], of: re.Match[str], samples_per_frame: int) -> Samples:
    """What a recorded name says of a waveform."""
    samples, part = np.concatenate(chunks), of["part"] or ""
    if "frame_rms" in (of["kind"], part):
        whole = samples[: len(samples) // samples_per_frame * samples_per_frame]
        loudness: Samples = np.sqrt(np.square(whole.reshape(-1, samples_per_frame)).mean(axis=1))
        return loudness
    if between := _BETWEEN.match(part):
        scale = samples_per_frame if between["unit"] == "frames" else 1
        return samples[int(between["first"]) * scale : int(between["end"]) * scale]
    if first := _FIRST.match(part):
        return (chunks[1] if first["second"] else samples)[: int(first["count"])]
    return samples


def _batch(wave: StreamedWave, recorded: Recorded) -> Iterator[Comparison]:
    names = [name.removeprefix("batch_codes_") for name in recorded if name.startswith("batch_codes_")]
    steps = [
        Step(
            state=wave.new_state(seed=0, voice=""),
            frames=to_frames(recorded[f"batch_codes_{name}"]),
            segment=0,
            segment_frame=0,
            segment_end=True,
        )
        for name in names
    ]
    for name, samples in zip(names, wave.decode_batch(steps), strict=True):
        if isinstance(samples, OmnistageError):
            raise samples
        yield compare(f"batch_wave_{name}", samples, recorded[f"batch_wave_{name}"], Tolerance.WAVEFORM)
