"""Runaway speech is noticed, speech is not."""

from __future__ import annotations

import random

import pytest

from omnistage_talker.engine.guard import RunawayGuard, RunawayLimits

LIMITS = RunawayLimits()


def first_fault(codes: list[int], tokens: int = 10_000, limits: RunawayLimits = LIMITS) -> tuple[int, str] | None:
    guard = RunawayGuard(limits)
    for index, code in enumerate(codes):
        fault = guard.fault(code, tokens)
        if fault is not None:
            return index + 1, fault
    return None


def noise(count: int, seed: int = 0, codes: int = 2048) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(codes) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_speech_that_changes_is_no_runaway(seed: int) -> None:
    assert first_fault(noise(2000, seed)) is None


def test_few_codes_in_no_order_are_no_runaway() -> None:
    assert first_fault(noise(1000, 1, codes=8)) is None


def test_a_pause_is_allowed_and_silence_without_end_is_not() -> None:
    pause = [7] * 60
    assert first_fault(noise(100) + pause + noise(100, 2)) is None
    found = first_fault(noise(100) + [7] * 500)
    assert found is not None
    assert found[0] <= 100 + LIMITS.silent_frames
    found = first_fault(noise(100) + [7, 9, 9, 7, 7, 9, 7] * 100)
    assert found is not None
    assert found[0] <= 100 + LIMITS.silent_frames + 4


@pytest.mark.parametrize("period", [2, 3, 5, 17, 40, 64])
def test_a_loop_is_noticed_after_a_few_rounds(period: int) -> None:
    found = first_fault(noise(50) + noise(period, 3) * 200)
    assert found is not None
    rounds = max(LIMITS.loop_frames, LIMITS.loop_rounds * period) + period
    assert 50 + rounds - 8 <= found[0] <= 50 + rounds + 8


def test_a_loop_with_small_differences_is_one_and_with_large_ones_is_none() -> None:
    rng = random.Random(4)
    loop = noise(20, 5) * 40
    nearly = [rng.randrange(2048) if rng.random() < 0.01 else code for code in loop]
    assert first_fault(nearly) is not None
    hardly = [rng.randrange(2048) if rng.random() < 0.3 else code for code in loop]
    assert first_fault(hardly) is None


@pytest.mark.parametrize(("tokens", "frames"), [(1, 112), (10, 225), (100, 1350)])
def test_the_ceiling_grows_with_the_text(tokens: int, frames: int) -> None:
    found = first_fault(noise(2000), tokens)
    assert found is not None
    assert found[0] == frames + 1
    assert f"{tokens} tokens" in found[1]


def test_a_longer_text_that_arrives_later_raises_the_ceiling() -> None:
    guard = RunawayGuard(LIMITS)
    codes = noise(400)
    assert [guard.fault(code, 4) for code in codes[:150]] == [None] * 150
    assert [guard.fault(code, 40) for code in codes[150:]] == [None] * 250
