"""Streaming code2wav equals the whole decode: for every chunking, beside others, after a context, when begun again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from services.codec.tests.codes import Codes, decode_in_steps, decode_whole, make_codes

from omnistage.errors import OmnistageError
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.base import BatchWaveModel, Samples, Step
from omnistage_codec.models.qwen3_omni import Qwen3OmniWave, load

ALLOWED = 2e-6
FRAME, LAG = 1920, 555


@pytest.mark.parametrize("frames", [1, 2, 3, 71, 72, 73, 160])
@pytest.mark.parametrize("sizes", [(1,), (4,), (25,), (1, 2, 4, 8, 16, 32, 64), (0, 1, 0, 3)], ids=str)
def test_any_chunking_gives_the_same_samples(omni_wave: Qwen3OmniWave, frames: int, sizes: tuple[int, ...]) -> None:
    codes = make_codes(frames, seed=frames)
    heard = decode_in_steps(omni_wave, codes, sizes)
    assert len(heard) == frames * FRAME - LAG
    assert np.abs(heard - decode_whole(omni_wave, codes)).max() <= ALLOWED


@pytest.mark.parametrize("seed", range(5))
def test_random_chunking_gives_the_same_samples(omni_wave: Qwen3OmniWave, seed: int) -> None:
    codes = make_codes(120, seed)
    sizes = np.random.default_rng(seed).integers(1, 40, 50).tolist()
    assert np.abs(decode_in_steps(omni_wave, codes, sizes) - decode_whole(omni_wave, codes)).max() <= ALLOWED


def test_every_frame_brings_all_samples_that_it_settles(omni_wave: Qwen3OmniWave) -> None:
    """The first frame brings a frame less the lag, each later one a frame: nothing is held back longer than needed."""
    state, codes = omni_wave.new_state(seed=0, voice=""), make_codes(5)
    lengths = [
        len(omni_wave.decode(state, codes[i : i + 1], segment=0, segment_frame=i, segment_end=i == 4)) for i in range(5)
    ]
    assert lengths == [FRAME - LAG, FRAME, FRAME, FRAME, FRAME]


def test_batch_invariant_is_bit_for_bit(golden_omni: Path) -> None:
    invariant = load(ModelOptions(checkpoint=golden_omni / "model", batch_invariant=True))
    codes = make_codes(80)
    whole = decode_whole(invariant, codes)
    assert np.array_equal(decode_in_steps(invariant, codes, (1, 5, 30)), whole)


def test_streams_that_begin_at_other_times_sound_as_each_alone(omni_wave: Qwen3OmniWave) -> None:
    """One pass holds rows at their beginning, where blocks are void, and rows far behind it."""
    streams = [make_codes(30, seed) for seed in range(4)]
    states = [omni_wave.new_state(seed=0, voice="") for _ in streams]
    begun, heard = [0] * 4, [list[Samples]() for _ in streams]
    for turn in range(60):
        going = [row for row in range(4) if turn >= 3 * row and begun[row] < 30]
        sizes = [1 + (turn + row) % 3 for row in going]
        steps = [
            Step(
                state=states[row],
                frames=streams[row][begun[row] : begun[row] + size],
                segment=0,
                segment_frame=begun[row],
                segment_end=begun[row] + size >= 30,
            )
            for row, size in zip(going, sizes, strict=True)
        ]
        for row, size, samples in zip(going, sizes, omni_wave.decode_batch(steps) if steps else [], strict=True):
            assert not isinstance(samples, OmnistageError)
            heard[row].append(samples)
            begun[row] += size
    for codes, parts in zip(streams, heard, strict=True):
        assert np.abs(np.concatenate(parts) - decode_whole(omni_wave, codes)).max() <= ALLOWED


def _silently(wave: Qwen3OmniWave, codes: Codes, silent: int, size: int) -> Samples:
    state, parts = wave.new_state(seed=0, voice=""), []
    for start in range(0, len(codes), size):
        step = Step(
            state=state,
            frames=codes[start : start + size],
            segment=0,
            segment_frame=start,
            segment_end=start + size >= len(codes),
            silent=max(0, silent - start),
        )
        (samples,) = wave.decode_batch([step])
        assert not isinstance(samples, OmnistageError)
        parts.append(samples)
    return np.concatenate(parts)


@pytest.mark.parametrize("silent", [1, 2, 10, 11, 12, 30, 59])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_frames_that_nobody_hears_change_nothing_of_the_others(
    omni_wave: Qwen3OmniWave, silent: int, size: int
) -> None:
    codes = make_codes(60)
    heard, whole = _silently(omni_wave, codes, silent, size), decode_whole(omni_wave, codes)
    assert len(heard) == len(whole)
    kept = slice(silent * FRAME - LAG, None)
    assert np.abs(heard[kept] - whole[kept]).max() <= ALLOWED


@pytest.mark.parametrize("before", [1, 5, 100])
def test_frames_before_the_answer_sound_on_in_it(omni_wave: Qwen3OmniWave, before: int) -> None:
    codes = make_codes(before + 10)
    heard = decode_whole(omni_wave, codes[before:], context=codes[:before])
    assert np.abs(heard - decode_whole(omni_wave, codes)[before * FRAME :]).max() <= ALLOWED


def test_each_segment_is_short_of_the_lag(omni_wave: Qwen3OmniWave) -> None:
    state, codes = omni_wave.new_state(seed=0, voice=""), make_codes(6)
    first = omni_wave.decode(state, codes[:3], segment=0, segment_frame=0, segment_end=True)
    second = omni_wave.decode(state, codes[3:], segment=1, segment_frame=0, segment_end=True)
    assert np.abs(first - decode_whole(omni_wave, codes[:3])).max() <= ALLOWED
    assert np.abs(second - decode_whole(omni_wave, codes[3:])).max() <= ALLOWED


def test_it_is_a_batch_family(omni_wave: Qwen3OmniWave) -> None:
    assert isinstance(omni_wave, BatchWaveModel)
    facts = omni_wave.facts
    assert (facts.frame_width, facts.frame_dtype, facts.samples_per_frame) == (16, "int32", FRAME)
    assert (facts.frame_rate_hz, facts.sample_rate_hz, facts.lag_samples) == (12.5, 24000, LAG)
