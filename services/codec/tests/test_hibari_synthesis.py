"""The streaming synthesis: equal to the reference, and the same bits however the frames are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hibari import dsp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnistage.errors import ConfigError, StageFailed
from omnistage_codec.models import load_model
from omnistage_codec.models.hibari import HibariState, HibariWave, layout
from omnistage_codec.models.hibari.noise import FrameNoise
from omnistage_codec.models.hibari.pulses import PulseTrain

Frames = NDArray[np.float32]
LOOKAHEAD = 4
TOLERANCE = 1e-4  # against the reference, which computes in another order


def decode_in(model: HibariWave, frames: Frames, sizes: list[int], *, seed: int = 7, segment: int = 0) -> list[Frames]:
    """Decode one segment in chunks of the given sizes, the last one taking the rest."""
    state = model.new_state(seed=seed, voice="heart")
    out, start = [], 0
    for number, size in enumerate([*sizes, len(frames)]):
        last = number == len(sizes)
        part = frames[start:] if last else frames[start : start + size]
        out.append(model.decode(state, part, segment=segment, segment_frame=start, segment_end=last))
        start += len(part)
    return out


class ReplayedNoise:
    """Gives the reference the noise that our synthesis draws."""

    def __init__(self, seed: int, segment: int) -> None:
        self._noise = FrameNoise(seed)
        self._segment = segment

    def standard_normal(self, shape: tuple[int, int], dtype: Any) -> NDArray[np.float32]:
        assert dtype is np.float32
        drawn = self._noise.frames(self._segment, 0, shape[1] // 2)
        return np.ascontiguousarray(drawn.T).view(np.float32)


def reference(frames: Frames, *, seed: int = 7, segment: int = 0) -> Frames:
    parts = [np.ascontiguousarray(frames[:, layout.columns(name)].T) for name in layout.BRANCHES]
    wave: Frames = dsp.synth(*parts, frames[:, layout.F0_COLUMN].copy(), ReplayedNoise(seed, segment))
    return wave


def same_bits(one: Frames, other: Frames) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


@pytest.fixture(scope="module", name="model")
def _model() -> HibariWave:
    return HibariWave()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 33, 150])
def test_equals_the_reference(model: HibariWave, make_frames: Any, count: int) -> None:
    for draw in range(3):
        frames = make_frames(count, seed=draw)
        (ours,) = decode_in(model, frames, [])
        theirs = reference(frames)
        assert len(ours) == count * layout.HOP == len(theirs)
        assert np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, float(np.abs(theirs).max()))


@pytest.mark.parametrize("f0", [0.0, -3.0, 39.9, 40.0, 41.0, 55.0, 999.0, 12_000.0])
def test_equals_the_reference_at_odd_frequencies(model: HibariWave, make_frames: Any, f0: float) -> None:
    frames = make_frames(20, f0=f0)
    (ours,) = decode_in(model, frames, [])
    theirs = reference(frames)
    assert np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, float(np.abs(theirs).max()))


def test_equals_the_reference_over_a_long_segment(model: HibariWave, make_frames: Any) -> None:
    frames = make_frames(2400, seed=5)
    (ours,) = decode_in(model, frames, [])
    theirs = reference(frames)
    assert np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, float(np.abs(theirs).max()))


@given(
    count=st.integers(1, 70),
    sizes=st.lists(st.integers(0, 40), max_size=30),
    draw=st.integers(0, 5),
    segment=st.integers(0, 3),
)
@settings(deadline=None)
def test_chunks_give_the_same_bits_as_the_whole(
    model: HibariWave, make_frames: Any, count: int, sizes: list[int], draw: int, segment: int
) -> None:
    frames = make_frames(count, seed=draw)
    (whole,) = decode_in(model, frames, [], segment=segment)
    chunked = np.concatenate(decode_in(model, frames, sizes, segment=segment))
    assert len(whole) == count * layout.HOP
    assert same_bits(chunked, whole)


def test_samples_trail_by_the_lookahead(model: HibariWave, make_frames: Any) -> None:
    frames = make_frames(30)
    sizes = [1] * 29
    lengths = np.cumsum([len(part) for part in decode_in(model, frames, sizes)]) // layout.HOP
    received = np.arange(1, 30)
    assert list(lengths[:-1]) == list(np.maximum(0, received - LOOKAHEAD))
    assert lengths[-1] == 30
    assert model.facts.lookahead_frames == LOOKAHEAD


def test_seed_and_segment_key_the_noise(model: HibariWave, make_frames: Any) -> None:
    frames = make_frames(12)
    (base,) = decode_in(model, frames, [], seed=1, segment=2)
    assert same_bits(base, decode_in(model, frames, [], seed=1, segment=2)[0])
    assert not np.allclose(base, decode_in(model, frames, [], seed=2, segment=2)[0], atol=1e-3)
    assert not np.allclose(base, decode_in(model, frames, [], seed=1, segment=3)[0], atol=1e-3)


def test_segments_are_independent(model: HibariWave, make_frames: Any) -> None:
    first, second = make_frames(9, seed=1), make_frames(11, seed=2)
    state = model.new_state(seed=3, voice="heart")
    model.decode(state, first, segment=0, segment_frame=0, segment_end=True)
    after = model.decode(state, second, segment=1, segment_frame=0, segment_end=True)
    assert same_bits(after, decode_in(model, second, [], seed=3, segment=1)[0])


def test_any_frame_of_noise_can_be_made_alone() -> None:
    whole = FrameNoise(11).frames(4, 0, 20)
    noise = FrameNoise(11)
    for frame in (19, 0, 7):
        assert np.array_equal(noise.frames(4, frame, 1)[0], whole[frame])
    parts = np.stack([whole.real, whole.imag])
    assert abs(float(parts.mean())) < 0.02
    assert abs(float(parts.std()) - 1.0) < 0.02
    assert not np.array_equal(whole[0], whole[1])


@pytest.mark.parametrize(("one", "other"), [(0, 1), (-1, 1), (2**63, 2**62), (5, -5)])
def test_different_seeds_give_different_noise(one: int, other: int) -> None:
    assert not np.array_equal(FrameNoise(one).frames(0, 0, 1), FrameNoise(other).frames(0, 0, 1))


def test_pulses_have_the_period_of_their_frequency() -> None:
    train = PulseTrain().extend(np.full(42, 200.0, np.float32)).reshape(-1)
    peaks = np.flatnonzero(train > 0.9 * train.max())
    assert set(np.diff(peaks)) == {120}  # 24 000 / 200
    assert train.max() == pytest.approx(11_000 / 200, abs=0.5)


def test_unvoiced_frames_have_no_pulses() -> None:
    assert not PulseTrain().extend(np.zeros(10, np.float32)).any()


def test_silence_stays_silent(model: HibariWave) -> None:
    frames = np.full((20, layout.WIDTH), -40.0, np.float32)
    samples = np.concatenate(decode_in(model, frames, [3, 4]))
    assert np.abs(samples).max() < 1e-9


def test_an_empty_segment_has_no_samples(model: HibariWave, make_frames: Any) -> None:
    (samples,) = decode_in(model, make_frames(0), [])
    assert samples.shape == (0,)
    assert samples.dtype == np.float32


def test_results_are_memory_of_their_own(model: HibariWave, make_frames: Any) -> None:
    frames = make_frames(40)
    kept = frames.copy()
    parts = decode_in(model, frames, [10, 10, 10])
    before = [part.copy() for part in parts]
    for part in parts:
        part[:] = 9.0
    again = decode_in(model, frames, [10, 10, 10])
    assert np.array_equal(frames, kept)
    assert all(same_bits(one, other) for one, other in zip(again, before, strict=True))


def _two_frames_in(model: HibariWave, make_frames: Any) -> HibariState:
    state = model.new_state(seed=0, voice="heart")
    model.decode(state, make_frames(2), segment=0, segment_frame=0, segment_end=False)
    return state


@pytest.mark.parametrize(("segment", "segment_frame"), [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2)])
def test_refuses_frames_that_do_not_follow(
    model: HibariWave, make_frames: Any, segment: int, segment_frame: int
) -> None:
    state = _two_frames_in(model, make_frames)
    with pytest.raises(StageFailed, match="segment"):
        model.decode(state, make_frames(1), segment=segment, segment_frame=segment_frame, segment_end=False)


def test_refuses_frames_after_the_end(model: HibariWave, make_frames: Any) -> None:
    state = _two_frames_in(model, make_frames)
    model.decode(state, make_frames(1), segment=0, segment_frame=2, segment_end=True)
    with pytest.raises(StageFailed, match="after the end"):
        model.decode(state, make_frames(1), segment=0, segment_frame=3, segment_end=True)


def test_refuses_another_layout(model: HibariWave, make_frames: Any) -> None:
    good = make_frames(3)
    bad = [good[:, :-1], good.astype(np.float64), good[0], np.where(good > 1, np.float32("nan"), good)]
    for frames in bad:
        with pytest.raises(StageFailed):
            model.decode(model.new_state(seed=0, voice=""), frames, segment=0, segment_frame=0, segment_end=True)


def test_unknown_family_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="hibari"):
        load_model("nothing")


def test_a_family_without_context_refuses_it() -> None:
    with pytest.raises(StageFailed, match="knows no context"):
        HibariWave().new_state(seed=1, voice="heart", context=np.zeros((2, layout.WIDTH), np.float32))
