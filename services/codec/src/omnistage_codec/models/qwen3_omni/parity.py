"""The family beside recorded results of the reference implementation, in the golden layout.

code2wav.safetensors      codes and waveforms
other files               the codes and the waveform of a whole answer
All of them are of the checkpoint `model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

from omnistage.parity import Comparison, Tolerance, compare
from omnistage.parity.folders import FIXTURES
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.stream import StreamedWave
from omnistage_codec.models.qwen3.waveforms import Recorded, check_waveforms, in_chunks, named, to_frames
from omnistage_codec.models.qwen3_omni.loading import load

_CODEC = "code2wav"
_ANSWER = "waveform_rp105"


def check(folder: Path) -> Iterator[Comparison]:
    """Compare everything in a family folder that concerns the codec. Raises ConfigError for a broken checkpoint."""
    files = {path.stem: load_file(path) for path in sorted((folder / FIXTURES).glob("*.safetensors"))}
    mine = {name: recorded for name, recorded in files.items() if name == _CODEC or _ANSWER in recorded}
    if not mine:
        return
    wave = load(ModelOptions(checkpoint=folder / "model"))
    for name, recorded in mine.items():
        yield from named(name, check_waveforms(wave, recorded) if name == _CODEC else _answer(wave, recorded))


def _answer(wave: StreamedWave, recorded: Recorded) -> Iterator[Comparison]:
    codes = to_frames(recorded["codes_rp105"])
    (samples,) = in_chunks(wave, codes, len(codes), 0)
    yield compare(_ANSWER, samples, recorded[_ANSWER], Tolerance.WAVEFORM)
