"""The talker computes what the reference implementation recorded, and a wrong computation would be seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.parity import Tolerance
from omnistage_talker.models.qwen3.replay import Replay, greedy, run_requests
from omnistage_talker.models.qwen3.request import FrameRequest
from omnistage_talker.models.qwen3_omni.parity import Fixture, check, make_prompt, read_fixtures
from omnistage_talker.models.qwen3_omni.prompt import Heard, Prompt
from omnistage_talker.models.qwen3_omni.talker import OmniTalker

CLEARLY = 100.0
"""A wrong computation is off by this many tolerances."""

_MINE = ("talker", "codes", "code_predictor", "decode_", "trailing", "tts_")


def test_every_recorded_result_is_met(golden_omni: Path, omni_talker: OmniTalker) -> None:
    rows = list(check(golden_omni))
    assert [row for row in rows if not row.passed] == []
    compared = {row.part for row in rows}
    fixtures = read_fixtures(golden_omni, omni_talker.config)
    assert {"text", "multi_turn", "audio_image"} <= {fixture.name for fixture in fixtures}
    for fixture in fixtures:
        for name in fixture.tensors:
            mine = name.startswith(_MINE) and not name.endswith("_topid")
            assert not mine or f"{fixture.name}: {name}" in compared, f"{fixture.name}: {name}"


def _fixture(golden_omni: Path, talker: OmniTalker, name: str) -> Fixture:
    return next(fixture for fixture in read_fixtures(golden_omni, talker.config) if fixture.name == name)


def _request(talker: OmniTalker, fixture: Fixture) -> FrameRequest:
    return make_prompt(talker, fixture).request(greedy(1.05, min_frames=0))


def _run(talker: OmniTalker, request: FrameRequest) -> Replay:
    return run_requests(talker, [request], 12)[0]


def _check_moved(right: Replay, wrong: Replay) -> None:
    for part, tolerance in (("logits", Tolerance.LOGITS), ("hidden", Tolerance.HIDDEN_STATES)):
        mine, other = getattr(right.numbers[0], part), getattr(wrong.numbers[0], part)
        assert (mine - other).abs().max() > CLEARLY * tolerance
    assert (right.numbers[0].residual - wrong.numbers[0].residual).abs().max() > CLEARLY * Tolerance.LOGITS


def _plain_positions(request: FrameRequest) -> FrameRequest:
    count = len(request.prefill)
    return replace(request, positions=torch.arange(count).float().expand(3, -1), next_position=float(count))


def _axes_exchanged(request: FrameRequest) -> FrameRequest:
    assert request.positions is not None
    return replace(request, positions=request.positions[[2, 0, 1]])


@pytest.mark.parametrize("change", [_plain_positions, _axes_exchanged])
def test_wrong_positions_are_seen(
    golden_omni: Path, omni_talker: OmniTalker, change: Callable[[FrameRequest], FrameRequest]
) -> None:
    request = _request(omni_talker, _fixture(golden_omni, omni_talker, "audio_image"))
    _check_moved(_run(omni_talker, request), _run(omni_talker, change(request)))


def _as_text(heard: Heard) -> Heard:
    return replace(heard, accepted=heard.embeds)


def _other_marks(heard: Heard) -> Heard:
    return replace(heard, marks=heard.marks[[0, 1, 1]])


@pytest.mark.parametrize("change", [_as_text, _other_marks])
def test_other_rows_are_seen(golden_omni: Path, omni_talker: OmniTalker, change: Callable[[Heard], Heard]) -> None:
    fixture = _fixture(golden_omni, omni_talker, "audio_image")
    prompt = Prompt(omni_talker, change(fixture.heard()), fixture.speaker)
    prompt.add(fixture.words())
    prompt.finish()
    wrong = prompt.request(greedy(1.05, min_frames=0))
    right = _request(omni_talker, fixture)
    assert (right.prefill - wrong.prefill).abs().max() > CLEARLY * Tolerance.EMBEDDINGS
    _check_moved(_run(omni_talker, right), _run(omni_talker, wrong))


def test_another_speaker_is_seen(golden_omni: Path, omni_talker: OmniTalker) -> None:
    fixture = _fixture(golden_omni, omni_talker, "text")
    other = replace(fixture, speaker="CHELSIE")
    _check_moved(_run(omni_talker, _request(omni_talker, fixture)), _run(omni_talker, _request(omni_talker, other)))


def test_another_later_word_is_seen_from_its_frame_on(golden_omni: Path, omni_talker: OmniTalker) -> None:
    fixture = _fixture(golden_omni, omni_talker, "multi_turn")
    embeds = fixture.tensors["thinker_embeds"].clone()
    embeds[len(fixture.tensors["input_ids"]) + 2] *= -1
    other = replace(fixture, tensors={**fixture.tensors, "thinker_embeds": embeds})
    right = _run(omni_talker, _request(omni_talker, fixture)).numbers
    wrong = _run(omni_talker, _request(omni_talker, other)).numbers
    assert torch.equal(right[1].embeds, wrong[1].embeds)
    assert (right[2].embeds - wrong[2].embeds).abs().max() > CLEARLY * Tolerance.EMBEDDINGS
    assert (right[2].logits - wrong[2].logits).abs().max() > CLEARLY * Tolerance.LOGITS


@pytest.mark.parametrize("seed", range(5))
def test_words_in_any_groups_make_the_same_prompt(golden_omni: Path, omni_talker: OmniTalker, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for fixture in read_fixtures(golden_omni, omni_talker.config):
        whole = make_prompt(omni_talker, fixture)
        prompt, words = Prompt(omni_talker, fixture.heard(), fixture.speaker), fixture.words()
        while len(words):
            size = int(rng.integers(0, 4))
            prompt.add(words[:size])
            words = words[size:]
        prompt.finish()
        assert prompt.prefill is not None
        assert whole.prefill is not None
        assert torch.equal(prompt.prefill, whole.prefill)
        assert len(prompt.later) == len(whole.later)
        for index in range(len(whole.later) + 1):
            assert torch.equal(prompt.later.row(index), whole.later.row(index))


@pytest.mark.parametrize("chunk_tokens", [1, 7, 33])
def test_prompts_in_chunks_beside_others_give_the_same_bits(
    golden_omni: Path, omni_talker: OmniTalker, chunk_tokens: int
) -> None:
    requests = [_request(omni_talker, fixture) for fixture in read_fixtures(golden_omni, omni_talker.config)]
    together = run_requests(omni_talker, requests, 12, chunk_tokens=chunk_tokens)
    for request, found in zip(requests, together, strict=True):
        alone = run_requests(omni_talker, [replace(request, _seen=set(), _counted=0)], 12)[0]
        assert torch.equal(found.codes, alone.codes)
        for mine, other in zip(found.numbers, alone.numbers, strict=True):
            assert torch.equal(mine.logits, other.logits)
            assert torch.equal(mine.residual, other.residual)


def test_the_command_fails_on_a_miss(golden_omni: Path, tmp_path: Path) -> None:
    (tmp_path / "family" / "fixtures").mkdir(parents=True)
    (tmp_path / "family" / "model").symlink_to(golden_omni / "model")
    (tmp_path / "family" / "fixtures" / "meta.json").symlink_to(golden_omni / "fixtures" / "meta.json")
    recorded: dict[str, Tensor] = load_file(golden_omni / "fixtures" / "text.safetensors")
    file = tmp_path / "family" / "fixtures" / "text.safetensors"
    command = [sys.executable, "-m", "omnistage_talker", "parity", str(tmp_path)]
    save_file(recorded, file)
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "13 compared, 0 missed"), good.stderr
    save_file(recorded | {"trailing_text_hidden": recorded["trailing_text_hidden"] + 2e-4}, file)
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "13 compared, 1 missed"), bad.stderr
