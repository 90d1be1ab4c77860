"""code2wav computes what the reference implementation recorded, and a wrong computation would be seen."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from services.codec.tests.codes import Codes, decode_whole, make_codes

from omnistage.parity import Tolerance
from omnistage_codec.models.qwen3.stream import StreamedWave
from omnistage_codec.models.qwen3.weights import Placement
from omnistage_codec.models.qwen3_omni import Qwen3OmniWave
from omnistage_codec.models.qwen3_omni.config import Code2WavConfig, read_config
from omnistage_codec.models.qwen3_omni.decoder import Decoder
from omnistage_codec.models.qwen3_omni.loading import load_decoder
from omnistage_codec.models.qwen3_omni.parity import check

CLEARLY = 100.0
"""A wrong computation is off by this many tolerances."""

FRAME = 1920


def test_every_recorded_waveform_is_met(golden_omni: Path) -> None:
    rows = list(check(golden_omni))
    assert [row for row in rows if not row.passed] == []
    compared = {row.part for row in rows}
    for path in (golden_omni / "fixtures").glob("*.safetensors"):
        for name in load_file(path):
            if path.stem == "code2wav" or name.startswith("waveform"):
                assert re.match(r"codes_\d+$", name) or f"{path.stem}: {name}" in compared, f"{path.name}: {name}"


def _with_config(golden_omni: Path, **changes: object) -> Qwen3OmniWave:
    config: Code2WavConfig = read_config(golden_omni / "model").model_copy(update=changes)
    return Qwen3OmniWave(load_decoder(golden_omni / "model", config, Placement()), config)


def _difference(other: StreamedWave, wave: Qwen3OmniWave, codes: Codes) -> NDArray[np.float32]:
    difference: NDArray[np.float32] = np.abs(decode_whole(other, codes) - decode_whole(wave, codes))
    return difference


def test_another_window_is_seen(golden_omni: Path, omni_wave: Qwen3OmniWave) -> None:
    difference = _difference(_with_config(golden_omni, sliding_window=71), omni_wave, make_codes(90))
    assert difference[: 71 * FRAME - 555].max() <= Tolerance.WAVEFORM
    assert difference[71 * FRAME :].max() >= CLEARLY * Tolerance.WAVEFORM


@pytest.mark.parametrize("changes", [{"rope_theta": 100.0}, {"rms_norm_eps": 1e-2}], ids=str)
def test_another_constant_is_seen(golden_omni: Path, omni_wave: Qwen3OmniWave, changes: dict[str, object]) -> None:
    difference = _difference(_with_config(golden_omni, **changes), omni_wave, make_codes(30))
    assert difference.max() >= CLEARLY * Tolerance.WAVEFORM


def test_blocks_before_the_beginning_would_be_heard(omni_wave: Qwen3OmniWave) -> None:
    """The first block of each stage must be nothing, not just be left out at the end."""
    network = omni_wave._decoder
    assert isinstance(network, Decoder)
    uncut = replace(network.waves, shape=replace(network.waves.shape, cut_first=False))
    other = StreamedWave(replace(network, waves=uncut), omni_wave.facts, codebook_size=2048)
    difference = _difference(other, omni_wave, make_codes(4))
    assert difference.max() >= CLEARLY * Tolerance.WAVEFORM


@pytest.mark.parametrize("group", [0, 1, 15])
def test_another_code_is_seen_from_its_frame_on(omni_wave: Qwen3OmniWave, group: int) -> None:
    codes = make_codes(12)
    changed = codes.copy()
    changed[5, group] = (changed[5, group] + 1) % 2048
    difference = np.abs(decode_whole(omni_wave, changed) - decode_whole(omni_wave, codes))
    assert difference[: 5 * FRAME - 555].max() <= Tolerance.WAVEFORM
    assert difference[5 * FRAME - 555 :].max() >= CLEARLY * Tolerance.WAVEFORM


def test_the_command_fails_on_a_miss(golden_omni: Path, tmp_path: Path) -> None:
    (tmp_path / "family" / "fixtures").mkdir(parents=True)
    (tmp_path / "family" / "model").symlink_to(golden_omni / "model")
    recorded = load_file(golden_omni / "fixtures" / "text.safetensors")
    file = tmp_path / "family" / "fixtures" / "text.safetensors"
    command = [sys.executable, "-m", "omnistage_codec", "parity", str(tmp_path)]
    save_file(recorded, file)
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "1 compared, 0 missed"), good.stderr
    save_file(recorded | {"waveform_rp105": recorded["waveform_rp105"] + np.float32(2e-5)}, file)
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "1 compared, 1 missed"), bad.stderr
