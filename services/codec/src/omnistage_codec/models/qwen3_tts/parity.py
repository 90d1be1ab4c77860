"""The family beside recorded results of the reference implementation, in the golden layout.

codec.decode.safetensors      codes and waveforms, of the checkpoint `base`
base.encoder.safetensors      recordings, codes, spectrogram, speaker embedding, and what lies between
*.end_to_end*.safetensors     codes and waveform, of the checkpoint that the name begins with
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from omnistage.errors import OmnistageError
from omnistage.parity import Comparison, Tolerance, compare
from omnistage.parity.folders import FIXTURES
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.base import Samples, Step
from omnistage_codec.models.qwen3_tts.config import read_tokenizer_config
from omnistage_codec.models.qwen3_tts.encoder import Clips, Encoder
from omnistage_codec.models.qwen3_tts.loading import load, load_encoder, load_speaker
from omnistage_codec.models.qwen3_tts.model import Qwen3TTSWave
from omnistage_codec.models.qwen3_tts.weights import Placement

Recorded = Mapping[str, NDArray[Any]]

_DEFAULT_CHUNKS = (300, 25)
"""Frames of a chunk and of its left context in the reference's own decoding."""

_STREAMED = (1, 4, 25)

_WAVE = re.compile(r"wave_(?P<frames>\d+)(_frames_\d+_\d+)?$")
_LOUDNESS = re.compile(r"frame_rms_(?P<frames>\d+)$")
_CHUNKED = re.compile(r"chunked_(?P<frames>\d+)_c(?P<chunk>\d+)_l(?P<left>\d+)_")
_DEFAULT = re.compile(r"(?P<default>default)_decode_(?P<frames>\d+)_")
_PART = re.compile(r"_frames_(?P<first>\d+)_(?P<end>\d+)$")


def check(folder: Path) -> Iterator[Comparison]:
    """Compare everything in a family folder that concerns the codec. Raises ConfigError for a broken checkpoint."""
    for path in sorted((folder / FIXTURES).glob("*.safetensors")):
        name, recorded = path.stem, load_file(path)
        checkpoint = folder / name.partition(".")[0]
        if name == "codec.decode":
            yield from _named(name, check_decoder(_decoder(folder / "base"), recorded))
        elif name.endswith(".encoder"):
            yield from _named(name, check_encoders(checkpoint, recorded))
        elif ".end_to_end" in name:
            yield from _named(name, _end_to_end(_decoder(checkpoint), recorded))


def _named(name: str, rows: Iterator[Comparison]) -> Iterator[Comparison]:
    for row in rows:
        yield Comparison(part=f"{name}: {row.part}", shape=row.shape, error=row.error, allowed=row.allowed)


def _decoder(checkpoint: Path) -> Qwen3TTSWave:
    wave, _ = load(ModelOptions(checkpoint=checkpoint, references=False))
    return wave


def check_decoder(wave: Qwen3TTSWave, recorded: Recorded) -> Iterator[Comparison]:
    """Every recorded waveform, part of one, or loudness per frame; whole, in chunks with context, in a batch."""
    for name, expected in recorded.items():
        of = _WAVE.match(name) or _CHUNKED.match(name) or _DEFAULT.match(name) or _LOUDNESS.match(name)
        if of is None:
            continue
        frames = of["frames"]
        codes = _codes(recorded[f"codes_{frames}"])
        samples = _in_chunks(wave, codes, *_chunks(of.groupdict(), len(codes)))
        yield compare(name, _part(samples, name, wave.facts.samples_per_frame), expected, Tolerance.WAVEFORM)
        if name == f"wave_{frames}":
            for size in _STREAMED:
                yield compare(f"{name} in steps of {size}", _streamed(wave, codes, size), expected, Tolerance.WAVEFORM)
    yield from _batch(wave, recorded)


def _chunks(of: Mapping[str, str | None], frames: int) -> tuple[int, int]:
    """Frames of a chunk and of its left context."""
    chunk, left = of.get("chunk"), of.get("left")
    if chunk is not None and left is not None:
        return int(chunk), int(left)
    return _DEFAULT_CHUNKS if of.get("default") else (frames, 0)


def _part(samples: Samples, name: str, samples_per_frame: int) -> Samples:
    """What a recorded name says of a waveform: frames of it, the loudness of each frame, or all."""
    part = _PART.search(name)
    if part is not None:
        return samples[int(part["first"]) * samples_per_frame : int(part["end"]) * samples_per_frame]
    if "frame_rms" in name:
        loudness: Samples = np.sqrt(np.square(samples.reshape(-1, samples_per_frame)).mean(axis=1))
        return loudness
    return samples


def _codes(recorded: NDArray[Any]) -> NDArray[np.int32]:
    """Recorded [groups, frames] to our [frames, groups]."""
    return np.ascontiguousarray(recorded.T, np.int32)


def _in_chunks(wave: Qwen3TTSWave, codes: NDArray[np.int32], chunk: int, left: int) -> Samples:
    """Each chunk anew, warmed with the frames before it, as the reference decodes long answers."""
    parts = []
    for start in range(0, len(codes), chunk):
        state = wave.new_state(seed=0, voice="", context=codes[max(0, start - left) : start])
        frames = codes[start : start + chunk]
        parts.append(wave.decode(state, frames, segment=0, segment_frame=0, segment_end=True))
    return np.concatenate(parts)


def _streamed(wave: Qwen3TTSWave, codes: NDArray[np.int32], size: int) -> Samples:
    state = wave.new_state(seed=0, voice="")
    starts = range(0, len(codes), size)
    return np.concatenate(
        [
            wave.decode(
                state,
                codes[start : start + size],
                segment=0,
                segment_frame=start,
                segment_end=start + size >= len(codes),
            )
            for start in starts
        ]
    )


def _batch(wave: Qwen3TTSWave, recorded: Recorded) -> Iterator[Comparison]:
    names = [name.removeprefix("batch_codes_") for name in recorded if name.startswith("batch_codes_")]
    steps = [
        Step(
            state=wave.new_state(seed=0, voice=""),
            frames=_codes(recorded[f"batch_codes_{name}"]),
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


def _end_to_end(wave: Qwen3TTSWave, recorded: Recorded) -> Iterator[Comparison]:
    context = _codes(recorded["ref_codes"]) if "ref_codes" in recorded else None
    state = wave.new_state(seed=0, voice="", context=context)
    samples = wave.decode(state, _codes(recorded["codes"]), segment=0, segment_frame=0, segment_end=True)
    yield compare("waveform", samples, recorded["waveform"], Tolerance.WAVEFORM)


@torch.inference_mode()
def check_encoders(checkpoint: Path, recorded: Recorded) -> Iterator[Comparison]:
    """Codes of both recordings, alone and together, the embedding, and what lies between."""
    config = read_tokenizer_config(checkpoint)
    encoder, _ = load_encoder(checkpoint, config, Placement())
    first, second = (torch.from_numpy(recorded[name]) for name in ("waveform", "waveform_b"))
    yield from _inside(encoder, first, recorded)
    (alone,), (other,), together = encoder([first]), encoder([second]), encoder([first, second])
    yield compare("codes", alone.T, recorded["codes"], Tolerance.CODES)
    yield compare("codes_b", other.T, recorded["codes_b"], Tolerance.CODES)
    yield compare("codes, beside another", together[0].T, recorded["codes"], Tolerance.CODES)
    yield compare("codes_b, beside another", together[1].T, recorded["codes_b"], Tolerance.CODES)
    # The reference pads a shorter clip of a batch to the longer one, which changes its last frame; here it stays.
    kept = recorded["codes_batched_b"][:, :-1]
    yield compare("codes_batched_b but the last frame", together[1].T[:, :-1], kept, Tolerance.CODES)
    found = load_speaker(checkpoint, Placement())
    if found is not None:
        speaker, log_mel, _ = found
        mel = log_mel(first)
        yield compare("mel", mel, recorded["mel"], Tolerance.LOG_MEL)
        for name, spectrum in (("speaker_embedding", mel), ("speaker_embedding_b", log_mel(second))):
            yield compare(name, speaker(spectrum), recorded[name], Tolerance.SPEAKER_EMBEDDING)


def _inside(encoder: Encoder, samples: torch.Tensor, recorded: Recorded) -> Iterator[Comparison]:
    columns = encoder.wave(Clips(samples[None, None], torch.tensor([len(samples)])))
    contexts = encoder.contexts(columns)
    yield _edge("conv_out", columns, recorded, slice(None, recorded["conv_out"].shape[1]))
    yield _edge("transformer_out_last4", contexts, recorded, slice(-recorded["transformer_out_last4"].shape[1], None))
    yield _edge("downsample_out", encoder.latents(contexts), recorded, slice(None))


def _edge(name: str, clips: Clips, recorded: Recorded, columns: slice) -> Comparison:
    return compare(name, clips.columns[0, :, columns], recorded[name], Tolerance.HIDDEN_STATES)
