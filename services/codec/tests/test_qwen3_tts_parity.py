"""The family computes what the reference implementation recorded, and a wrong computation would be seen."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from services.codec.tests.codes import decode_whole, make_codes

from omnistage.parity import Tolerance
from omnistage_codec.models.qwen3.stream import Point, StreamState
from omnistage_codec.models.qwen3.waveforms import check_waveforms
from omnistage_codec.models.qwen3.weights import Placement
from omnistage_codec.models.qwen3_tts import Qwen3TTSWave
from omnistage_codec.models.qwen3_tts.config import read_speaker_config, read_tokenizer_config
from omnistage_codec.models.qwen3_tts.encoder import Clips
from omnistage_codec.models.qwen3_tts.loading import load_decoder, load_encoder, load_speaker
from omnistage_codec.models.qwen3_tts.parity import check

CLEARLY = 100.0
"""A wrong computation is off by this many tolerances."""

_INPUTS = re.compile(r"(batch_)?codes_[ab0-9]+$|ref_codes$|codes$|waveform(_b)?$|code_distance_gap")


def test_every_recorded_result_is_met(golden: Path) -> None:
    rows = list(check(golden))
    assert [row for row in rows if not row.passed] == []
    compared = " ".join(row.part for row in rows)
    for path in (golden / "fixtures").glob("*.safetensors"):
        mine = path.stem == "codec.decode" or ".encoder" in path.stem or ".end_to_end" in path.stem
        for name in load_file(path) if mine else ():
            is_input = _INPUTS.match(name) and f"{path.stem}: {name}" not in compared
            assert is_input or f"{path.stem}: {name}" in compared, f"{path.name}: {name}"


def test_loudness_is_compared_of_whole_decodes_and_of_chunks(wave: Qwen3TTSWave) -> None:
    codes = make_codes(7)
    chunks = [
        decode_whole(wave, codes[:5]),
        decode_whole(wave, codes[3:])[2 * 1920 :],
    ]
    recorded = {
        "codes_7": codes.T,
        "frame_rms_7": _loudness(decode_whole(wave, codes)),
        "chunked_7_c5_l2_frame_rms": _loudness(np.concatenate(chunks)),
    }
    rows = list(check_waveforms(wave, recorded))
    assert [(row.part, row.shape, row.passed) for row in rows] == [
        ("frame_rms_7", (7,), True),
        ("chunked_7_c5_l2_frame_rms", (7,), True),
    ]
    wrong = {**recorded, "chunked_7_c5_l2_frame_rms": recorded["frame_rms_7"]}
    assert [row.passed for row in check_waveforms(wave, wrong)] == [True, False]


def _loudness(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    loudness: NDArray[np.float32] = np.sqrt(np.square(samples.reshape(-1, 1920)).mean(axis=1))
    return loudness


@torch.inference_mode()
def test_the_encoder_chooses_with_the_recorded_margins(golden: Path) -> None:
    recorded = load_file(golden / "fixtures" / "base.encoder.safetensors")
    encoder, _ = load_encoder(golden / "base", read_tokenizer_config(golden / "base"), Placement())
    for suffix in ("", "_b"):
        samples = torch.from_numpy(recorded[f"waveform{suffix}"])
        columns = encoder.wave(Clips(samples[None, None], torch.tensor([len(samples)])))
        vectors = encoder.latents(encoder.contexts(columns)).columns.transpose(1, 2)
        gaps = []
        for search in (encoder.semantic, encoder.acoustic):
            left = torch.nn.functional.linear(vectors, search.projection)
            for codebook in search.codebooks:
                distances = (left[:, :, None] - codebook).square().sum(-1).sqrt()
                nearest = distances.topk(2, largest=False)
                gaps.append((nearest.values[0, :, 1] - nearest.values[0, :, 0]).numpy())
                left = left - codebook[nearest.indices[..., 0]]
        expected = recorded[f"code_distance_gap{suffix}"]
        assert np.abs(np.stack(gaps)[: len(expected)] - expected).max() < Tolerance.HIDDEN_STATES


def _decoder_with_window(checkpoint: Path, window: int) -> Qwen3TTSWave:
    config = read_tokenizer_config(checkpoint)
    sizes = config.decoder_config.model_copy(update={"sliding_window": window})
    other = config.model_copy(update={"decoder_config": sizes})
    return Qwen3TTSWave(load_decoder(checkpoint, other, Placement()), other)


def test_another_window_is_seen(golden: Path, wave: Qwen3TTSWave) -> None:
    codes = make_codes(90)
    shorter = decode_whole(_decoder_with_window(golden / "custom_voice", 71), codes)
    difference = np.abs(shorter - decode_whole(wave, codes)).reshape(90, -1).max(axis=1)
    assert difference[:71].max() <= Tolerance.WAVEFORM
    assert difference[71:].max() >= CLEARLY * Tolerance.WAVEFORM


@pytest.mark.parametrize("group", [0, 1, 15])
def test_another_code_is_seen_from_its_frame_on(wave: Qwen3TTSWave, group: int) -> None:
    codes = make_codes(12)
    changed = codes.copy()
    changed[5, group] = (changed[5, group] + 1) % 2048
    difference = np.abs(decode_whole(wave, changed) - decode_whole(wave, codes))
    assert difference[: 5 * 1920].max() <= Tolerance.WAVEFORM
    assert difference[5 * 1920 :].max() >= CLEARLY * Tolerance.WAVEFORM


def test_groups_in_another_order_are_seen(wave: Qwen3TTSWave) -> None:
    codes = make_codes(4)
    difference = np.abs(decode_whole(wave, codes[:, ::-1].copy()) - decode_whole(wave, codes))
    assert difference.max() >= CLEARLY * Tolerance.WAVEFORM


def test_another_position_is_seen(wave: Qwen3TTSWave) -> None:
    """Rotary positions are relative, so what moves is one half of a stream against the other."""
    codes = make_codes(20)
    state = wave.new_state(seed=0, voice="")
    wave.decode(state, codes[:10], segment=0, segment_frame=0, segment_end=False)
    point: Point = state.point
    moved = StreamState(state.context)
    moved.point = replace(point, position=point.position + 5)
    halves = [wave.decode(half, codes[10:], segment=0, segment_frame=10, segment_end=True) for half in (state, moved)]
    assert np.abs(halves[0] - decode_whole(wave, codes)[10 * 1920 :]).max() <= Tolerance.WAVEFORM
    assert np.abs(halves[1] - halves[0]).max() >= CLEARLY * Tolerance.WAVEFORM


@torch.inference_mode()
def test_another_recording_has_other_codes_and_another_embedding(golden: Path) -> None:
    recorded = load_file(golden / "fixtures" / "base.encoder.safetensors")
    encoder, _ = load_encoder(golden / "base", read_tokenizer_config(golden / "base"), Placement())
    louder = torch.from_numpy(recorded["waveform"]) * 1.5
    assert (encoder([louder])[0].T.numpy() != recorded["codes"]).mean() > 0.2
    found = load_speaker(golden / "base", Placement())
    assert found is not None
    speaker, log_mel, _ = found
    moved = np.abs(speaker(log_mel(louder)).numpy() - recorded["speaker_embedding"]).max()
    assert moved >= CLEARLY * Tolerance.SPEAKER_EMBEDDING


def test_checkpoints_for_named_voices_have_no_speaker_encoder(golden: Path) -> None:
    assert read_speaker_config(golden / "custom_voice") is None
    assert load_speaker(golden / "custom_voice", Placement()) is None


def test_the_command_says_so_and_fails_on_a_miss(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "family"
    (folder / "fixtures").mkdir(parents=True)
    (folder / "custom_voice").symlink_to(golden / "custom_voice")
    recorded = load_file(golden / "fixtures" / "custom_voice.end_to_end.safetensors")
    file = folder / "fixtures" / "custom_voice.end_to_end.safetensors"
    command = [sys.executable, "-m", "omnistage_codec", "parity", str(tmp_path)]
    save_file(recorded, file)
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "1 compared, 0 missed"), good.stderr
    save_file(recorded | {"waveform": recorded["waveform"] + np.float32(2e-5)}, file)
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "1 compared, 1 missed"), bad.stderr
