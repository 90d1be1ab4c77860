"""Towers and preprocessing equal transformers', for media that the fixtures do not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as reference
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)

from omnistage.errors import InvalidRequest
from omnistage.parity import Tolerance
from omnistage_thinker.models.qwen3_omni.audio_tower import audio_tokens
from omnistage_thinker.models.qwen3_omni.mel import LogMel
from omnistage_thinker.models.qwen3_omni.patches import PixelLimits, scaled_size, to_patches
from omnistage_thinker.models.qwen3_omni.thinker import Thinker

_extractor: Any = WhisperFeatureExtractor


def _load(golden_omni: Path, kind: str, config: Any, prefix: str) -> Any:
    weights = load_file(golden_omni / "model" / "model.safetensors")
    config._attn_implementation = "sdpa"
    tower = getattr(reference, kind)(config)
    tower.load_state_dict({name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)})
    return tower.eval()


def _section(golden_omni: Path, name: str) -> dict[str, Any]:
    section: dict[str, Any] = json.loads((golden_omni / "model" / "config.json").read_text())["thinker_config"][name]
    return section


@pytest.fixture(scope="module", name="audio_reference")
def _audio_reference(golden_omni: Path) -> Any:
    config = Qwen3OmniMoeAudioEncoderConfig(**_section(golden_omni, "audio_config"))
    return _load(golden_omni, "Qwen3OmniMoeAudioEncoder", config, "thinker.audio_tower.")


@pytest.fixture(scope="module", name="vision_reference")
def _vision_reference(golden_omni: Path) -> Any:
    config = Qwen3OmniMoeVisionEncoderConfig(**_section(golden_omni, "vision_config"))
    return _load(golden_omni, "Qwen3OmniMoeVisionEncoder", config, "thinker.visual.")


@torch.inference_mode()
@pytest.mark.parametrize("frames", [1, 2, 9, 50, 99, 100, 101, 199, 750, 800, 801, 1234])
def test_any_length_of_sound(thinker: Thinker, audio_reference: Any, frames: int) -> None:
    log_mel = torch.randn(128, frames, generator=torch.Generator().manual_seed(frames))
    found = thinker.audio_tower(log_mel)
    expected: Tensor = audio_reference(log_mel, feature_lens=torch.tensor([frames])).last_hidden_state
    assert len(found) == audio_tokens(frames, 100) == len(expected)
    assert (found - expected).abs().max() <= Tolerance.HIDDEN_STATES


@torch.inference_mode()
@pytest.mark.parametrize("grids", [[(1, 2, 2)], [(1, 4, 10)], [(3, 6, 4)], [(1, 2, 8), (2, 4, 4), (1, 60, 2)]], ids=str)
def test_any_grid_of_pictures(thinker: Thinker, vision_reference: Any, grids: list[tuple[int, int, int]]) -> None:
    count = sum(time * height * width for time, height, width in grids)
    patches = torch.randn(count, 1536, generator=torch.Generator().manual_seed(count))
    found = thinker.vision_tower(patches, grids)
    expected = vision_reference(patches, grid_thw=torch.tensor(grids))
    assert (found.embeds - expected.pooler_output).abs().max() <= Tolerance.HIDDEN_STATES
    for mine, other in zip(found.deep, expected.deepstack_features, strict=True):
        assert (mine - other).abs().max() <= Tolerance.HIDDEN_STATES


@pytest.mark.parametrize("samples", [400, 401, 1599, 1600, 36_800, 100_003])
def test_spectrograms(samples: int) -> None:
    rng = np.random.default_rng(samples)
    clip = (rng.standard_normal(samples) * np.linspace(0.0, 0.3, samples)).astype(np.float32)
    extractor = _extractor(feature_size=128)
    expected = extractor(
        clip, sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True, return_tensors="np"
    )
    found = LogMel(128)(torch.from_numpy(clip)).numpy()
    frames = int(expected["attention_mask"][0].sum())
    assert found.shape == (128, samples // 160) == (128, frames)
    assert np.abs(found - expected["input_features"][0][:, :frames]).max() <= Tolerance.LOG_MEL


@pytest.mark.parametrize(
    ("clip", "told"),
    [(torch.zeros(399), "has 399 samples"), (torch.full((800,), torch.nan), "not finite")],
    ids=["short", "not a number"],
)
def test_sound_that_cannot_be_taken(clip: Tensor, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        LogMel(128)(clip)


def test_a_patch_holds_its_pixels(thinker: Thinker) -> None:
    """Squares of two by two patches from left to right and down; in a patch colours, then frames, rows, columns."""
    frames = torch.randint(0, 256, (4, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    patches, grid = to_patches(frames, thinker.config.vision)
    assert grid == (2, 4, 6)
    places = [
        (time, 2 * down + inner_down, 2 * across + inner_across)
        for time in range(2)
        for down in range(2)
        for across in range(3)
        for inner_down in range(2)
        for inner_across in range(2)
    ]
    assert len(patches) == len(places)
    for patch, (time, row, column) in zip(patches, places, strict=True):
        pixels = frames[2 * time : 2 * time + 2, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        expected = pixels.transpose(0, 1).flatten().float() / 127.5 - 1.0
        assert (patch - expected).abs().max() <= 1e-6


def test_an_odd_number_of_frames_repeats_the_last(thinker: Thinker) -> None:
    frames = torch.randint(0, 256, (3, 3, 64, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    patches, grid = to_patches(frames, thinker.config.vision)
    assert grid == (2, 4, 2)
    same, _ = to_patches(torch.cat((frames, frames[2:])), thinker.config.vision)
    assert torch.equal(patches, same)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(64, 96, (64, 96)), (10, 10, (64, 64)), (100, 300, (96, 288)), (5000, 4000, (4000, 3200)), (48, 48, (64, 64))],
)
def test_sizes_of_pictures(height: int, width: int, expected: tuple[int, int]) -> None:
    assert scaled_size(height, width, 32, PixelLimits(least=3136, most=12_845_056)) == expected


def test_a_picture_that_is_too_narrow() -> None:
    with pytest.raises(InvalidRequest, match="too long and narrow"):
        scaled_size(1, 201, 32, PixelLimits(least=3136, most=12_845_056))
