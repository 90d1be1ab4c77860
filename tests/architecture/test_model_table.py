"""Memory in the table of models is that of the networks: checked against checkpoints that are there."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

PUBLISHED_PARAMETERS = {"0.6b": 905_788_672, "1.7b": 1_916_676_352}
"""Of the talkers in the published files, in bfloat16: 1.81 and 3.83 GB."""


@pytest.fixture(scope="module", name="tool")
def _tool(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "tools" / "model_table.py"))


def _numbers(file: Path, prefix: str) -> int:
    with safe_open(file, framework="np") as tensors:
        return sum(tensors.get_tensor(name).size for name in tensors.keys() if name.startswith(prefix))  # noqa: SIM118 - no mapping


def test_what_is_counted_is_what_a_checkpoint_holds(root: Path, tool: dict[str, Any], tmp_path: Path) -> None:
    talker, codec = (root / "services" / name / "tests" / "fixtures" / "qwen3_tts" for name in tool["STAGES"])
    found = {}
    for name in ("base", "custom_voice"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").symlink_to(talker / "base" / "config.json")
        (folder / "speech_tokenizer").symlink_to(codec / name / "speech_tokenizer")
        found[name] = tool["sizes"](folder)
    assert found["base"].talker == _numbers(talker / "base" / "model.safetensors", "talker.")
    tokenizers = {name: codec / name / "speech_tokenizer" / "model.safetensors" for name in found}
    assert found["custom_voice"].decoder == _numbers(tokenizers["custom_voice"], "decoder.")
    speaker = _numbers(codec / "base" / "model.safetensors", "speaker_encoder.")
    assert found["base"].encoders == _numbers(tokenizers["base"], "encoder.") + speaker


@pytest.mark.parametrize("name", list(PUBLISHED_PARAMETERS))
def test_sizes_of_the_published_configurations(tool: dict[str, Any], name: str) -> None:
    found = tool["sizes"](tool["PUBLISHED"] / name)
    assert found.talker == PUBLISHED_PARAMETERS[name]
    # 28 layers, keys and values, 8 heads of 128.
    assert found.talker_position == 28 * 2 * 8 * 128
    # 72 positions of keys and values in 8 layers of 16 heads of 64, and what the convolutions remember.
    assert found.decoder_stream > 8 * 2 * 71 * 16 * 64


def test_a_miss_would_be_in_the_table(tool: dict[str, Any], tmp_path: Path) -> None:
    for worst, told in (("3e-05", "3.0e-05 of 2e-05 allowed (150%)"), ("1e-05", "1.0e-05 of 2e-05 allowed (50%)")):
        file = tmp_path / "parity.csv"
        file.write_text(f"stage,part,shape,error,allowed\ntalker,a,1,1,0.0\ntalker,b,1,{worst},2e-05\n")
        tool["_parity"].__globals__["MEASURED"] = file
        assert tool["_parity"]("talker") == f"1 of 1 parts differ; of 1 others the worst is off by {told}"
