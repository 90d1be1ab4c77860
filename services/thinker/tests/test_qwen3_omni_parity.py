"""The thinker computes what the reference implementation recorded, and a wrong computation would be seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.parity import Tolerance
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.config import ThinkerConfig
from omnistage_thinker.models.qwen3_omni.parity import Fixture, check, read_fixtures, recorded_prompt, run_towers
from omnistage_thinker.models.qwen3_omni.prompt import Prompt
from omnistage_thinker.models.qwen3_omni.replay import Replay, run_prompts
from omnistage_thinker.models.qwen3_omni.thinker import Thinker

CLEARLY = 100.0
"""A wrong computation is off by this many tolerances."""

STOP = 274

_INPUTS = {"input_ids", "audio_waveform_16k", "feature_attention_mask", "pixel_values", "image_grid_thw"}
_MINE = ("thinker", "audio", "vision", "input", "pixel", "image")


def test_every_recorded_result_is_met(golden_omni: Path) -> None:
    rows = list(check(golden_omni))
    assert [row for row in rows if not row.passed] == []
    compared = {row.part for row in rows}
    for fixture in read_fixtures(golden_omni):
        for name in fixture.tensors:
            mine = name.startswith(_MINE) and name not in _INPUTS
            assert not mine or f"{fixture.name}: {name}" in compared, f"{fixture.name}: {name}"


def _fixture(golden_omni: Path, name: str) -> Fixture:
    return next(fixture for fixture in read_fixtures(golden_omni) if fixture.name == name)


def _prompt(thinker: Thinker, fixture: Fixture) -> Prompt:
    return recorded_prompt(thinker, fixture, run_towers(thinker, fixture))


def _run(thinker: Thinker, fixture: Fixture, prompt: Prompt, **options: int) -> Replay:
    (result,) = run_prompts(
        thinker, [(fixture.ids, prompt)], max_new_tokens=fixture.max_new_tokens, stop=STOP, **options
    )
    return result


def _plain_positions(prompt: Prompt) -> Prompt:
    count = prompt.positions.shape[1]
    return replace(prompt, positions=torch.arange(count).float().expand(3, -1), next_position=float(count))


def _axes_exchanged(prompt: Prompt) -> Prompt:
    return replace(prompt, positions=prompt.positions[[0, 2, 1]])


def _nothing_deep(prompt: Prompt) -> Prompt:
    return replace(prompt, deep=())


def _deep_layers_exchanged(prompt: Prompt) -> Prompt:
    return replace(prompt, deep=prompt.deep[::-1])


CHANGES: dict[str, Callable[[Prompt], Prompt]] = {
    "plain positions": _plain_positions,
    "axes exchanged": _axes_exchanged,
    "nothing deep": _nothing_deep,
    "deep layers exchanged": _deep_layers_exchanged,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["image", "audio_image"])
def test_a_wrong_prompt_is_seen(golden_omni: Path, thinker: Thinker, name: str, change: str) -> None:
    fixture = _fixture(golden_omni, name)
    prompt = _prompt(thinker, fixture)
    right, wrong = _run(thinker, fixture, prompt), _run(thinker, fixture, CHANGES[change](prompt))
    count = len(fixture.ids)
    accepted = (right.accepted[:count] - wrong.accepted[:count]).abs().max()
    logits = (right.numbers[0].logits - wrong.numbers[0].logits).abs().max()
    assert accepted > CLEARLY * Tolerance.HIDDEN_STATES
    assert logits > CLEARLY * Tolerance.LOGITS


@pytest.mark.parametrize("layer", [3, 5])
def test_a_neighbouring_layer_is_seen(golden_omni: Path, thinker: Thinker, layer: int) -> None:
    fixture = _fixture(golden_omni, "text")
    prompt = _prompt(thinker, fixture)
    right = _run(thinker, fixture, prompt)
    thinker.config, kept = replace(thinker.config, accept_layer=layer), thinker.config
    try:
        wrong = _run(thinker, fixture, prompt)
    finally:
        thinker.config = kept
    assert (right.accepted - wrong.accepted).abs().max() > CLEARLY * Tolerance.HIDDEN_STATES


@pytest.mark.parametrize("kind", ["experts", "normalized"])
def test_another_choice_of_experts_is_seen(golden_omni: Path, thinker: Thinker, kind: str) -> None:
    fixture = _fixture(golden_omni, "text")
    experts = thinker.config.text.experts
    assert experts is not None
    other = replace(experts, chosen=1) if kind == "experts" else replace(experts, normalized=False)
    changed = replace(thinker.config, text=replace(thinker.config.text, experts=other))
    wrong = _run(_reloaded(golden_omni, changed), fixture, _prompt(thinker, fixture))
    right = _run(thinker, fixture, _prompt(thinker, fixture))
    assert (right.numbers[0].logits - wrong.numbers[0].logits).abs().max() > CLEARLY * Tolerance.LOGITS


def _reloaded(golden_omni: Path, config: ThinkerConfig) -> Thinker:
    tensors = load_file(golden_omni / "model" / "model.safetensors")

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        assert tuple(tensors[name].shape) == shape
        return tensors[name]

    return Thinker(config, take)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 33])
def test_prompts_in_chunks_beside_others_give_the_same_bits(
    golden_omni: Path, thinker: Thinker, chunk_tokens: int
) -> None:
    fixtures = read_fixtures(golden_omni)
    prompts = [(fixture.ids, _prompt(thinker, fixture)) for fixture in fixtures]
    together = run_prompts(thinker, prompts, max_new_tokens=16, stop=STOP, chunk_tokens=chunk_tokens)
    for prompt, found in zip(prompts, together, strict=True):
        (alone,) = run_prompts(thinker, [prompt], max_new_tokens=16, stop=STOP)
        assert found.tokens == alone.tokens
        assert torch.equal(found.embeds, alone.embeds)
        assert torch.equal(found.accepted, alone.accepted)
        for mine, other in zip(found.numbers, alone.numbers, strict=True):
            assert torch.equal(mine.logits, other.logits)


def test_the_command_fails_on_a_miss(golden_omni: Path, tmp_path: Path) -> None:
    (tmp_path / "family" / "fixtures").mkdir(parents=True)
    (tmp_path / "family" / "model").symlink_to(golden_omni / "model")
    (tmp_path / "family" / "fixtures" / "meta.json").symlink_to(golden_omni / "fixtures" / "meta.json")
    recorded = load_file(golden_omni / "fixtures" / "text.safetensors")
    file = tmp_path / "family" / "fixtures" / "text.safetensors"
    command = [sys.executable, "-m", "omnistage_thinker", "parity", str(tmp_path)]
    save_file(recorded, file)
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "8 compared, 0 missed"), good.stderr
    save_file(recorded | {"thinker_accept_hidden": recorded["thinker_accept_hidden"] + 2e-4}, file)
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "8 compared, 1 missed"), bad.stderr


def test_loading_is_strict(golden_omni: Path) -> None:
    assert load_thinker(golden_omni / "model").config.accept_layer == 4
