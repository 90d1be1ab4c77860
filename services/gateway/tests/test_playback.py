"""The client's clock, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from omnistage.observability import Metrics, names
from omnistage_gateway.playback import Playback

MODEL = "voice"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("gateway", "test")


def follow(metrics: Metrics, steps: list[tuple[float, float]], *, streamed: bool = True) -> Playback:
    now = [0.0]
    playback = Playback(metrics, MODEL, streamed=streamed, clock=lambda: now[0])
    for at, total_s in steps:
        now[0] = at
        playback.sent(total_s)
    return playback


def measured(metrics: Metrics, metric: Any) -> float:
    return metrics.value(metric, model=MODEL)


def test_a_stream_ahead_of_its_player_never_runs_dry(metrics: Metrics) -> None:
    follow(metrics, [(1.0, 0.5), (1.4, 1.0), (1.9, 1.5)])
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 0
    assert measured(metrics, names.AUDIO_SECONDS) == 1.5


def test_late_samples_are_underruns_of_their_length(metrics: Metrics) -> None:
    follow(metrics, [(1.0, 0.5), (1.75, 1.0), (1.8, 1.0), (3.0, 1.5)])
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 2
    # Dry from 1.5 to 1.75; then half a second plays to 2.25, dry until 3.0.
    assert measured(metrics, names.CLIENT_UNDERRUN_SECONDS) == pytest.approx(1.0)


def test_an_answer_in_one_piece_cannot_run_dry(metrics: Metrics) -> None:
    follow(metrics, [(1.0, 0.5), (9.0, 1.0)], streamed=False)
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 0
    assert measured(metrics, names.AUDIO_SECONDS) == 1.0


def test_real_time_factor_only_of_streams_with_sound(metrics: Metrics) -> None:
    follow(metrics, []).ended()
    assert measured(metrics, names.REAL_TIME_FACTOR) == 0
    follow(metrics, [(1.0, 4.0)]).ended()
    assert measured(metrics, names.REAL_TIME_FACTOR) == 1
    total = metrics.registry.get_sample_value(
        "omnistage_real_time_factor_sum", {"stage": "gateway", "instance": "test", "model": MODEL}
    )
    assert total == pytest.approx(0.25)
