"""`omnistage parity`: the rows of all services in one table, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnistage.launcher.faults import LauncherError
from omnistage.launcher.parity import compare_with_reference

FIXTURES = Path(__file__).resolve().parents[3] / "services" / "codec" / "tests" / "fixtures" / "qwen3_tts"
END_TO_END = "fixtures/custom_voice.end_to_end.safetensors"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """One recorded answer and the checkpoint that made it, one level below what is named."""
    family = tmp_path / "family"
    (family / "fixtures").mkdir(parents=True)
    (family / "custom_voice").symlink_to(FIXTURES / "custom_voice")
    save_file(load_file(FIXTURES / END_TO_END), family / END_TO_END)
    return tmp_path


def parity(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omnistage.launcher", "parity", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_met_is_shown_with_its_service(folder: Path) -> None:
    done = parity(folder)
    assert done.returncode == 0, done.stderr
    header, *rows, last = done.stdout.splitlines()
    assert header.split() == ["part", "shape", "largest", "error", "allowed", "error"]
    (row,) = [row for row in rows if row.startswith("codec: custom_voice.end_to_end: waveform")]
    assert row.split()[-4::3] == ["17280", "ok"]
    assert last == f"{len(rows)} compared, 0 missed"


def test_a_miss_exits_with_one(folder: Path) -> None:
    recorded = load_file(FIXTURES / END_TO_END)
    save_file(recorded | {"waveform": recorded["waveform"] + np.float32(1e-3)}, folder / "family" / END_TO_END)
    done = parity(folder)
    assert done.returncode == 1
    assert "MISSED" in done.stdout


def test_a_service_that_cannot_compare_is_named(folder: Path) -> None:
    (folder / "family" / "custom_voice").unlink()
    (folder / "family" / "custom_voice").mkdir()
    (folder / "family" / "custom_voice" / "config.json").write_text('{"model_type": "qwen3_tts"}')
    with pytest.raises(LauncherError, match=r"^(codec|talker): .*(speech_tokenizer|custom_voice)"):
        compare_with_reference(folder)


def test_nothing_to_compare_and_no_folder(tmp_path: Path) -> None:
    done = parity(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no fixtures of a known model family" in done.stderr
    assert parity(tmp_path / "none").returncode == 1
