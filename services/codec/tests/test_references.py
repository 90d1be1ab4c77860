"""Recordings to codes: once per content, together, cached by tenant and bytes, resampled, refused by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from numpy.typing import NDArray
from safetensors.numpy import load_file

from omnistage.errors import InvalidRequest, StageFailed
from omnistage_codec.engine import Coalescing, ReferenceConfig, ReferenceEngine
from omnistage_codec.engine.reference_cache import ReferenceCache, ReferenceKey, content_of
from omnistage_codec.engine.references import in_passes
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.base import Reference, ReferenceFacts, Samples
from omnistage_codec.models.qwen3_tts.loading import load_references

RATE = 24_000


class Encoder:
    """A code is the clip's length; can be held up, and fails on clips of 1234 samples."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()
        self.running = threading.Event()

    @property
    def facts(self) -> ReferenceFacts:
        return ReferenceFacts(sample_rate_hz=RATE, frame_rate_hz=12.5, min_samples=400, fingerprint="f")

    def encode(self, clips: Sequence[Samples]) -> list[Reference]:
        self.batches.append([len(clip) for clip in clips])
        self.running.set()
        assert self.go.wait(10)
        if any(len(clip) == 1234 for clip in clips):
            raise StageFailed("1234")
        return [
            Reference(codes=np.full((1, 2), len(clip), np.int32), embedding=np.full(3, clip.max(), np.float32))
            for clip in clips
        ]


@pytest.fixture(name="model")
def _model() -> Encoder:
    return Encoder()


@pytest.fixture(name="engine")
async def _engine(model: Encoder) -> AsyncIterator[ReferenceEngine]:
    engine = ReferenceEngine(model, ReferenceConfig(max_seconds=2.0, coalescing=Coalescing(max_batch=4)))
    yield engine
    await engine.close()


def clip(count: int, level: float = 0.5) -> NDArray[np.float32]:
    return np.full(count, level, np.float32)


async def test_the_same_recording_is_encoded_once_at_a_time_and_once_at_all(
    engine: ReferenceEngine, model: Encoder
) -> None:
    model.go.clear()
    first = [asyncio.ensure_future(engine.encode(clip(1000), RATE, tenant="a")) for _ in range(3)]
    await asyncio.to_thread(model.running.wait, 10)
    while engine.joined < 2:
        await asyncio.sleep(0.001)
    model.go.set()
    results = await asyncio.gather(*first)
    assert (engine.encoded, engine.joined, engine.hits) == (1, 2, 0)
    results[0].codes[:] = 0
    assert results[0].embedding is not None
    results[0].embedding[:] = 0
    again = await engine.encode(clip(1000), RATE, tenant="a")
    assert (engine.encoded, engine.joined, engine.hits) == (1, 2, 1)
    for result in (results[1], results[2], again):
        assert result.codes.tolist() == [[1000, 1000]]
        assert result.embedding is not None
        assert result.embedding.tolist() == [0.5] * 3
    again.codes[:] = 0
    assert (await engine.encode(clip(1000), RATE, tenant="a")).codes.tolist() == [[1000, 1000]]


async def test_other_tenants_content_and_rates_are_others(engine: ReferenceEngine) -> None:
    await engine.encode(clip(1000), RATE, tenant="a")
    await engine.encode(clip(1000), RATE, tenant="b")
    await engine.encode(clip(1000, 0.25), RATE, tenant="a")
    await engine.encode(clip(1000), 2 * RATE, tenant="a")
    await engine.encode((clip(1000) * 32768).astype(np.int16), RATE, tenant="a")
    assert (engine.encoded, engine.hits) == (5, 0)


async def test_recordings_that_come_during_a_run_share_the_next(engine: ReferenceEngine, model: Encoder) -> None:
    model.go.clear()
    lengths = [1000, 1001, 1002, 1003, 1004, 1005]
    first = asyncio.ensure_future(engine.encode(clip(lengths[0]), RATE, tenant="a"))
    await asyncio.to_thread(model.running.wait, 10)
    rest = [asyncio.ensure_future(engine.encode(clip(length), RATE, tenant="a")) for length in lengths[1:]]
    while engine.encoded + len(engine._in_flight) < 7:
        await asyncio.sleep(0.001)
    model.go.set()
    results = await asyncio.gather(first, *rest)
    assert [result.codes[0, 0] for result in results] == lengths
    assert [len(batch) for batch in model.batches] == [1, 4, 1]


async def test_whoever_leaves_does_not_take_the_work_along(engine: ReferenceEngine, model: Encoder) -> None:
    model.go.clear()
    leaves, stays = (asyncio.ensure_future(engine.encode(clip(1000), RATE, tenant="a")) for _ in range(2))
    await asyncio.to_thread(model.running.wait, 10)
    while engine.joined < 1:
        await asyncio.sleep(0.001)
    leaves.cancel()
    await asyncio.sleep(0)
    model.go.set()
    assert (await stays).codes[0, 0] == 1000
    assert leaves.cancelled()


async def test_a_failure_is_told_to_all_and_not_kept(engine: ReferenceEngine, model: Encoder) -> None:
    for _ in range(2):
        with pytest.raises(StageFailed, match="1234"):
            await engine.encode(clip(1234), RATE, tenant="a")
    assert model.batches == [[1234], [1234]]
    assert (await engine.encode(clip(1000), RATE, tenant="a")).codes[0, 0] == 1000


async def test_one_that_fails_does_not_take_the_others_along(engine: ReferenceEngine, model: Encoder) -> None:
    model.go.clear()
    first = asyncio.ensure_future(engine.encode(clip(1000), RATE, tenant="a"))
    await asyncio.to_thread(model.running.wait, 10)
    rest = [asyncio.ensure_future(engine.encode(clip(length), RATE, tenant="a")) for length in (1001, 1234, 1002)]
    while len(engine._in_flight) < 4:
        await asyncio.sleep(0.001)
    model.go.set()
    results = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [isinstance(result, StageFailed) for result in results] == [False, False, True, False]
    assert sorted(model.batches[1]) == [1001, 1002, 1234]
    assert sorted(model.batches[2:]) == [[1001], [1002], [1234]]


@pytest.mark.parametrize(
    ("lengths", "slices"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([50], [(0, 1)]),
        ([5, 5], [(0, 2)]),
        ([5, 6], [(0, 1), (1, 2)]),
        ([4, 4, 4, 9, 1, 20, 1], [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]),
    ],
)
def test_passes_have_a_length_in_all(lengths: list[int], slices: list[tuple[int, int]]) -> None:
    assert [(one.start, one.stop) for one in in_passes(lengths, 10)] == slices


async def test_other_rates_and_types_become_the_models(engine: ReferenceEngine, model: Encoder) -> None:
    await engine.encode(clip(32_000), 16_000, tenant="a")
    assert model.batches[-1] == [48_000]
    quiet = await engine.encode(np.full(1000, 8192, np.int16), RATE, tenant="a")
    assert quiet.embedding is not None
    assert quiet.embedding.tolist() == [0.25] * 3


@pytest.mark.parametrize(
    ("samples", "rate", "said"),
    [
        (clip(0), RATE, "0.000 s"),
        (clip(399), RATE, "0.017 s"),
        (clip(2 * RATE + 1), RATE, "0.017 to 2 s"),
        (clip(1000, float("nan")), RATE, "not finite"),
        (clip(1000, float("inf")), RATE, "not finite"),
        (np.zeros((1000, 2), np.float32), RATE, "2-D"),
        (np.zeros(1000, np.float64), RATE, "float64"),
        (clip(1000), 0, "not 0"),
        (clip(1000), -RATE, "not -24000"),
        (clip(1000), 1_000_000, "not 1000000"),
    ],
)
async def test_what_is_no_recording_is_refused(
    engine: ReferenceEngine, model: Encoder, samples: Any, rate: int, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await engine.encode(samples, rate, tenant="a")
    assert model.batches == []


async def test_the_real_model_takes_a_recording_of_another_rate(golden: Path) -> None:
    recorded = load_file(golden / "fixtures" / "base.encoder.safetensors")
    model = load_references(ModelOptions(checkpoint=golden / "base"))
    engine = ReferenceEngine(model)
    try:
        await engine.warm()
        exact = await engine.encode(recorded["waveform"], RATE, tenant="a")
        assert np.array_equal(exact.codes.T, recorded["codes"])
        assert exact.codes.dtype == np.int32
        assert exact.embedding is not None
        assert np.abs(exact.embedding - recorded["speaker_embedding"]).max() <= 1e-4
        doubled = soxr.resample(recorded["waveform_b"], RATE, 2 * RATE)
        other = await engine.encode(doubled, 2 * RATE, tenant="a")
        (expected,) = model.encode([soxr.resample(doubled, 2 * RATE, RATE)])
        assert other.codes.shape == (11, len(recorded["codes_b"]))
        assert np.array_equal(other.codes, expected.codes)
        assert other.embedding is not None
        assert expected.embedding is not None
        assert np.array_equal(other.embedding, expected.embedding)
    finally:
        await engine.close()


def test_a_failure_of_the_network_is_the_stages(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_references(ModelOptions(checkpoint=golden / "base"))

    class Broken:
        downsampling = model._encoder.downsampling

        def __call__(self, _: object) -> None:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "_encoder", Broken())
    with pytest.raises(StageFailed, match="out of memory"):
        model.encode([clip(1000)])


def test_recordings_are_encoded_alike_alone_and_together(golden: Path) -> None:
    model = load_references(ModelOptions(checkpoint=golden / "base"))
    rng = np.random.default_rng(2)
    clips = [rng.standard_normal(length).astype(np.float32) * 0.1 for length in (1920, 1921, 1280, 9000, 30_000)]
    for alone, together in zip([model.encode([one])[0] for one in clips], model.encode(clips), strict=True):
        assert np.array_equal(alone.codes, together.codes)
        assert alone.embedding is not None
        assert together.embedding is not None
        assert np.abs(alone.embedding - together.embedding).max() <= 1e-5
    assert [len(one.codes) for one in model.encode(clips)] == [1, 2, 1, 5, 16]


async def test_the_shortest_recording_is_taken_and_one_sample_less_is_refused(golden: Path) -> None:
    model = load_references(ModelOptions(checkpoint=golden / "base"))
    assert model.facts.min_samples == 1280  # five columns of the spectrogram, the least that four can be reflected of
    with pytest.raises(StageFailed):
        model.encode([clip(1279)])
    engine = ReferenceEngine(model)
    try:
        assert (await engine.encode(clip(1280), RATE, tenant="a")).codes.shape[0] == 1
        with pytest.raises(InvalidRequest, match=r"0\.053 s"):
            await engine.encode(clip(1279), RATE, tenant="a")
    finally:
        await engine.close()


def reference(size: int) -> Reference:
    return Reference(codes=np.zeros((size, 1), np.int32), embedding=None)


def key(name: str, tenant: str = "a") -> ReferenceKey:
    return ReferenceKey(tenant, "f", name.encode())


def test_the_cache_drops_what_was_not_used_for_longest() -> None:
    cache = ReferenceCache(max_bytes=120)
    for name in ("one", "two", "three"):
        cache.put(key(name), reference(10))
    assert (len(cache), cache.nbytes) == (3, 120)
    assert cache.get(key("one")) is not None
    cache.put(key("four"), reference(10))
    assert cache.get(key("two")) is None
    assert cache.get(key("one")) is not None
    cache.put(key("five"), reference(20))
    assert [cache.get(key(name)) is not None for name in ("one", "three", "four", "five")] == [True, False, False, True]
    assert cache.nbytes == 120


def test_the_cache_counts_replaced_and_refused_entries_right() -> None:
    cache = ReferenceCache(max_bytes=100)
    cache.put(key("one"), reference(10))
    cache.put(key("one"), reference(5))
    cache.put(key("large"), reference(26))
    assert (len(cache), cache.nbytes) == (1, 20)
    assert cache.get(key("one", tenant="b")) is None
    empty = ReferenceCache(max_bytes=0)
    empty.put(key("one"), reference(1))
    assert len(empty) == 0


def test_the_cache_keeps_copies() -> None:
    cache = ReferenceCache(max_bytes=100)
    mine = reference(2)
    cache.put(key("one"), mine)
    mine.codes[:] = 7
    first = cache.get(key("one"))
    assert first is not None
    first.codes[:] = 9
    second = cache.get(key("one"))
    assert second is not None
    assert second.codes.tolist() == [[0], [0]]


def test_content_depends_on_type_rate_length_and_samples() -> None:
    samples = np.arange(4, dtype=np.int16)
    contents = {
        content_of(samples, 24_000),
        content_of(samples, 16_000),
        content_of(samples[:3], 24_000),
        content_of(samples.view(np.float32), 24_000),
        content_of(samples + np.int16(1), 24_000),
    }
    assert len(contents) == 5
    assert content_of(samples[::2], 24_000) == content_of(samples[::2].copy(), 24_000)
