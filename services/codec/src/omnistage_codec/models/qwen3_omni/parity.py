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


def check(folder: Path) -> Iterator[Comparison]:
    """Compare everything in a family folder that concerns the codec. Raises ConfigError for a broken checkpoint."""
    wave = load(ModelOptions(checkpoint=folder / "model"))
    for path in sorted((folder / FIXTURES).glob("*.safetensors")):
        recorded = load_file(path)
        if path.stem == "code2wav":
            yield from named(path.stem, check_waveforms(wave, recorded))
        elif "waveform_rp105" in recorded:
            yield from named(path.stem, _answer(wave, recorded))


def _answer(wave: StreamedWave, recorded: Recorded) -> Iterator[Comparison]:
    codes = to_frames(recorded["codes_rp105"])
    (samples,) = in_chunks(wave, codes, len(codes), 0)
    yield compare("waveform_rp105", samples, recorded["waveform_rp105"], Tolerance.WAVEFORM)
