"""Streaming equals whole: for every chunking, beside other streams, after a context, and when begun again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from services.codec.tests.codes import Codes, decode_in_steps, decode_whole, load_wave, make_codes

from omnistage.errors import OmnistageError, StageFailed
from omnistage_codec.models.base import BatchWaveModel, Samples, Step
from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.transformer import Attention, AttentionShape, view
from omnistage_codec.models.qwen3_tts import Qwen3TTSWave, StreamState
from omnistage_codec.models.qwen3_tts.decoder import Decoder

ALLOWED = 1e-4
FRAME = 1920


@pytest.mark.parametrize("frames", [1, 3, 71, 72, 73, 160])
@pytest.mark.parametrize("sizes", [(1,), (4,), (25,), (1, 2, 4, 8, 16, 32, 64), (100,)], ids=str)
def test_any_chunking_gives_the_same_samples(wave: Qwen3TTSWave, frames: int, sizes: tuple[int, ...]) -> None:
    codes = make_codes(frames, seed=frames)
    streamed = decode_in_steps(wave, codes, sizes)
    assert len(streamed) == frames * FRAME
    assert np.abs(streamed - decode_whole(wave, codes)).max() <= ALLOWED


@pytest.mark.parametrize("seed", range(5))
def test_random_chunking_gives_the_same_samples(wave: Qwen3TTSWave, seed: int) -> None:
    codes = make_codes(120, seed)
    sizes = np.random.default_rng(seed).integers(1, 40, 50).tolist()
    assert np.abs(decode_in_steps(wave, codes, sizes) - decode_whole(wave, codes)).max() <= ALLOWED


def test_the_frames_of_a_pass_do_not_matter(golden: Path, wave: Qwen3TTSWave) -> None:
    codes = make_codes(90)
    for step_frames in (1, 7, 1000):
        other = load_wave(golden / "custom_voice", step_frames=step_frames)
        assert np.abs(decode_whole(other, codes) - decode_whole(wave, codes)).max() <= ALLOWED


def test_batch_invariant_is_bit_for_bit(golden: Path) -> None:
    invariant = load_wave(golden / "custom_voice", batch_invariant=True)
    codes = make_codes(80)
    whole = decode_whole(invariant, codes)
    assert np.array_equal(decode_in_steps(invariant, codes, (1, 5, 30)), whole)
    others = [make_codes(80, seed) for seed in (1, 2, 3)]
    for mine, alone in zip(_together(invariant, [codes, *others], seed=3), [codes, *others], strict=True):
        assert np.array_equal(mine, decode_whole(invariant, alone))


def _together(wave: Qwen3TTSWave, streams: list[Codes], seed: int) -> list[Samples]:
    """All streams at once, each in chunks of its own, pausing and ending at random."""
    rng = np.random.default_rng(seed)
    states = [wave.new_state(seed=0, voice="") for _ in streams]
    starts = [0] * len(streams)
    parts: list[list[Samples]] = [[] for _ in streams]
    while going := [index for index, codes in enumerate(streams) if starts[index] < len(codes)]:
        chosen = [index for index in going if rng.random() < 0.7]
        steps = []
        for index in chosen:
            size = int(rng.integers(1, 20))
            frames = streams[index][starts[index] : starts[index] + size]
            end = starts[index] + size >= len(streams[index])
            steps.append(
                Step(state=states[index], frames=frames, segment=0, segment_frame=starts[index], segment_end=end)
            )
            starts[index] += size
        for index, samples in zip(chosen, wave.decode_batch(steps), strict=True):
            assert not isinstance(samples, OmnistageError)
            parts[index].append(samples)
    return [np.concatenate(part) for part in parts]


def test_32_streams_side_by_side_sound_as_each_alone(wave: Qwen3TTSWave) -> None:
    lengths = np.random.default_rng(5).integers(1, 100, 32)
    streams = [make_codes(int(length), seed) for seed, length in enumerate(lengths)]
    for samples, codes in zip(_together(wave, streams, seed=1), streams, strict=True):
        assert len(samples) == len(codes) * FRAME
        assert np.abs(samples - decode_whole(wave, codes)).max() <= ALLOWED


def test_samples_are_memory_of_their_own(wave: Qwen3TTSWave) -> None:
    streams = [wave.new_state(seed=0, voice="") for _ in range(2)]
    codes = make_codes(8)

    def step(start: int) -> list[Samples]:
        results = wave.decode_batch(
            [
                Step(state=state, frames=codes[start : start + 4], segment=0, segment_frame=start, segment_end=False)
                for state in streams
            ]
        )
        return [result for result in results if not isinstance(result, OmnistageError)]

    first = step(0)
    kept = [samples.copy() for samples in first]
    second = step(4)
    for one, other in itertools.combinations([*first, *second], 2):
        assert not np.shares_memory(one, other)
    first[0][:] = 9.0
    assert np.array_equal(first[1], kept[1])
    tails = [tail for state in streams for tail in (*state.point.latents, *state.point.voice)]
    assert len({tail.untyped_storage().data_ptr() for tail in tails}) == len(tails)


def test_a_state_is_what_its_frames_make_of_it(wave: Qwen3TTSWave) -> None:
    """Whoever takes over decodes the frames again and stands where the one before stood."""
    codes = make_codes(60)
    went, rebuilt = wave.new_state(seed=1, voice="a"), wave.new_state(seed=2, voice="b")
    for start in range(0, 50, 5):
        wave.decode(went, codes[start : start + 5], segment=0, segment_frame=start, segment_end=False)
    wave.decode(rebuilt, codes[:50], segment=0, segment_frame=0, segment_end=False)
    assert rebuilt.point.position == went.point.position == 50
    remembered = [(*state.point.latents, *state.point.voice) for state in (went, rebuilt)]
    for one, other in zip(*remembered, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= ALLOWED
    ends = [wave.decode(state, codes[50:], segment=0, segment_frame=50, segment_end=True) for state in (went, rebuilt)]
    assert np.abs(ends[0] - ends[1]).max() <= ALLOWED


@pytest.mark.parametrize("sizes", [(1,), (7, 30)], ids=str)
def test_a_context_is_heard_by_the_decoder_alone(wave: Qwen3TTSWave, sizes: tuple[int, ...]) -> None:
    codes = make_codes(100)
    whole = decode_whole(wave, codes)[40 * FRAME :]
    assert np.abs(decode_whole(wave, codes[40:], context=codes[:40]) - whole).max() <= ALLOWED
    assert np.abs(decode_whole(wave, codes[40:]) - whole).max() > 100 * ALLOWED
    state = wave.new_state(seed=0, voice="", context=codes[:40])
    assert len(wave.decode(state, codes[:0], segment=0, segment_frame=0, segment_end=False)) == 0
    assert state.point.unvoiced is None  # all that the first frame needs is done before it comes
    assert state.point.position == 40
    parts, start = [], 40
    for size in itertools.cycle(sizes):
        frames = codes[start : start + size]
        end = start + size >= 100
        parts.append(wave.decode(state, frames, segment=0, segment_frame=start - 40, segment_end=end))
        start += size
        if end:
            break
    assert np.abs(np.concatenate(parts) - whole).max() <= ALLOWED


def _silently(wave: Qwen3TTSWave, codes: Codes, silent: int, sizes: tuple[int, ...]) -> Samples:
    """In steps of these sizes, where the samples of the first `silent` frames are not needed."""
    state, start, parts = wave.new_state(seed=0, voice=""), 0, []
    for size in itertools.cycle(sizes):
        frames = codes[start : start + size]
        step = Step(
            state=state,
            frames=frames,
            segment=0,
            segment_frame=start,
            segment_end=start + size >= len(codes),
            silent=max(0, silent - start),
        )
        (samples,) = wave.decode_batch([step])
        assert not isinstance(samples, OmnistageError)
        assert len(samples) == len(frames) * FRAME
        parts.append(samples)
        start += size
        if start >= len(codes):
            break
    return np.concatenate(parts)


@pytest.mark.parametrize("silent", [1, 10, 11, 12, 30, 99, 100])
@pytest.mark.parametrize("sizes", [(1,), (8, 3), (100,)], ids=str)
def test_frames_that_nobody_hears_change_nothing_of_the_others(
    wave: Qwen3TTSWave, silent: int, sizes: tuple[int, ...]
) -> None:
    codes = make_codes(100)
    heard = _silently(wave, codes, silent, sizes)[silent * FRAME :]
    assert np.abs(heard - decode_whole(wave, codes)[silent * FRAME :]).max(initial=0.0) <= 2e-6


def test_frames_that_nobody_hears_change_no_bit_with_the_invariant_setting(golden: Path) -> None:
    invariant = load_wave(golden / "custom_voice", batch_invariant=True)
    codes = make_codes(60)
    for sizes in ((60,), (1,), (7,)):
        heard = _silently(invariant, codes, 40, sizes)[40 * FRAME :]
        assert np.array_equal(heard, decode_whole(invariant, codes)[40 * FRAME :])


def test_fewer_frames_of_memory_would_be_heard(golden: Path) -> None:
    codes = make_codes(60)
    forgetful = load_wave(golden / "custom_voice")
    network = forgetful._decoder
    assert isinstance(network, Decoder)
    assert network.voice_memory_frames == 11
    forgetful._decoder = replace(network, voice_memory_frames=2)
    difference = _silently(forgetful, codes, 40, (60,)) - decode_whole(forgetful, codes)
    assert np.abs(difference[40 * FRAME :]).max() > 1e-4


def test_segments_are_independent_and_each_begins_with_the_context(wave: Qwen3TTSWave) -> None:
    context, first, second = make_codes(10, 1), make_codes(6, 2), make_codes(5, 3)
    state = wave.new_state(seed=0, voice="", context=context)
    wave.decode(state, first, segment=0, segment_frame=0, segment_end=True)
    samples = wave.decode(state, second, segment=1, segment_frame=0, segment_end=True)
    assert np.abs(samples - decode_whole(wave, second, context)).max() <= ALLOWED


def test_a_segment_may_end_without_further_frames(wave: Qwen3TTSWave) -> None:
    state = wave.new_state(seed=0, voice="")
    codes = make_codes(3)
    wave.decode(state, codes, segment=0, segment_frame=0, segment_end=False)
    assert len(wave.decode(state, codes[:0], segment=0, segment_frame=3, segment_end=True)) == 0
    with pytest.raises(StageFailed, match="after the end of segment 0"):
        wave.decode(state, codes, segment=0, segment_frame=3, segment_end=True)


def test_a_segment_must_end_before_the_next(wave: Qwen3TTSWave) -> None:
    state = wave.new_state(seed=0, voice="")
    wave.decode(state, make_codes(2), segment=0, segment_frame=0, segment_end=False)
    with pytest.raises(StageFailed, match="segment 1 came before segment 0 had ended"):
        wave.decode(state, make_codes(2), segment=1, segment_frame=0, segment_end=False)


def test_heads_may_share_keys_and_values() -> None:
    rng = torch.Generator().manual_seed(0)
    shape = AttentionShape(width=8, heads=4, key_heads=2, head_dim=2, window=5, rope_theta=10_000.0)
    query, output = (torch.randn(8, 8, generator=rng) for _ in range(2))
    key, value = (torch.randn(4, 8, generator=rng) for _ in range(2))
    every = replace(shape, key_heads=4)
    own_key, own_value = (torch.cat((weight[:2], weight[:2], weight[2:], weight[2:])) for weight in (key, value))
    x = torch.randn(1, 9, 8, generator=rng)
    results = [
        attention(x, view(shape, torch.zeros(1, dtype=torch.int64), 9, x.dtype), History([[]], [9]))
        for attention in (
            Attention(shape, query, key, value, output),
            Attention(every, query, own_key, own_value, output),
        )
    ]
    assert torch.equal(results[0], results[1])


def _step(state: StreamState, frames: Codes, start: int = 0) -> Step[StreamState]:
    return Step(state=state, frames=frames, segment=0, segment_frame=start, segment_end=False)


def test_wrong_frames_fail_alone(wave: Qwen3TTSWave) -> None:
    good, codes = wave.new_state(seed=0, voice=""), make_codes(4)
    too_large, negative = codes.copy(), codes.copy()
    too_large[2, 3], negative[0, 0] = 2048, -1
    states = [wave.new_state(seed=0, voice="") for _ in range(5)]
    results = wave.decode_batch(
        [
            _step(states[0], too_large),
            _step(states[1], negative),
            _step(good, codes),
            _step(states[2], codes, start=1),
            _step(states[3], codes.astype(np.int64)),
            _step(states[4], codes[:, :8]),
        ]
    )
    said = [result.message if isinstance(result, StageFailed) else "fine" for result in results]
    assert [part in text for part, text in zip(["2048", "-1", "fine", "at frame 0", "int64", "8]"], said, strict=True)]
    assert said.count("fine") == 1
    assert np.abs(np.asarray(results[2]) - decode_whole(wave, codes)).max() <= ALLOWED
    retried = wave.decode(states[2], codes, segment=0, segment_frame=0, segment_end=True)
    assert np.abs(retried - decode_whole(wave, codes)).max() <= ALLOWED  # a refused step leaves the state as it was


class _Replaced:
    """The network but for some of its attributes."""

    def __init__(self, network: Decoder, **others: object) -> None:
        self._network = network
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> object:
        return getattr(self._network, name)


def test_a_failure_of_the_network_leaves_states_as_they_were(
    wave: Qwen3TTSWave, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, codes = [wave.new_state(seed=0, voice="") for _ in range(2)], make_codes(4)
    steps = [_step(state, codes) for state in states]
    network = wave._decoder
    assert isinstance(network, Decoder)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(wave, "_decoder", _Replaced(network, voice=fail))
    assert all(isinstance(result, StageFailed) for result in wave.decode_batch(steps))
    monkeypatch.setattr(wave, "_decoder", network)
    for samples in wave.decode_batch(steps):
        assert np.abs(np.asarray(samples) - decode_whole(wave, codes)).max() <= ALLOWED


def test_it_is_a_batch_family(wave: Qwen3TTSWave) -> None:
    assert isinstance(wave, BatchWaveModel)
    facts = wave.facts
    assert (facts.frame_width, facts.frame_dtype, facts.samples_per_frame) == (16, "int32", FRAME)
    assert (facts.frame_rate_hz, facts.sample_rate_hz, facts.lookahead_frames) == (12.5, 24000, 0)
