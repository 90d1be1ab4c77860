"""The client's clock, by hand."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from omnistage.errors import StageFailed
from omnistage.observability import Metrics, Tracing, names, setup_logging
from omnistage_gateway.playback import Playback

MODEL = "voice"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("gateway", "test")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def reach(self, at: float) -> None:
        """A write that is over at that time."""
        self.now = at


async def follow(
    metrics: Metrics, steps: list[tuple[float, ...]], *, streamed: bool = True, breaks: bool = False
) -> Playback:
    """Steps are (bytes are ready at, audio written with them in all) or (ready at, written at, audio)."""
    clock = Clock()
    with Playback(metrics, MODEL, "r1", streamed=streamed, clock=clock) as playback:
        for ready, *written, total_s in steps:
            clock.now = ready
            await playback.write(clock.reach(written[0] if written else ready), total_s)
        if breaks:
            raise StageFailed("the stream broke")
    return playback


def measured(metrics: Metrics, metric: Any) -> float:
    return metrics.value(metric, model=MODEL)


async def test_a_stream_ahead_of_its_player_never_runs_dry(metrics: Metrics) -> None:
    await follow(metrics, [(1.0, 0.5), (1.4, 1.0), (1.9, 1.5)])
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 0
    assert measured(metrics, names.AUDIO_SECONDS) == 1.5


async def test_late_samples_are_underruns_of_their_length(metrics: Metrics) -> None:
    await follow(metrics, [(1.0, 0.5), (1.75, 1.0), (1.8, 1.0), (3.0, 1.5)])
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 2
    # Dry from 1.5 to 1.75; then half a second plays to 2.25, dry until 3.0.
    assert measured(metrics, names.CLIENT_UNDERRUN_SECONDS) == pytest.approx(1.0)


async def test_what_a_stream_ran_dry_is_its_own(metrics: Metrics) -> None:
    rough = await follow(metrics, [(1.0, 0.5), (1.75, 1.0), (3.0, 1.5)])
    smooth = await follow(metrics, [(2.0, 0.5), (2.25, 1.0)])
    assert (rough.underruns, rough.first_audio_s) == (2, 1.0)
    assert rough.underrun_s == pytest.approx(1.0)
    assert (smooth.underruns, smooth.underrun_s, smooth.first_audio_s) == (0, 0.0, 2.0)


async def test_the_clock_starts_when_bytes_are_written_not_when_they_are_ready(metrics: Metrics) -> None:
    playback = await follow(metrics, [(1.0, 3.0, 0.5), (3.4, 1.0)])
    assert (playback.underruns, playback.first_audio_s) == (0, 3.0)


async def test_bytes_without_audio_start_nothing(metrics: Metrics) -> None:
    playback = await follow(metrics, [(0.5, 0.0), (1.0, 0.25)])
    assert playback.first_audio_s == 1.0


async def test_a_client_that_does_not_take_its_bytes_has_not_run_dry(metrics: Metrics) -> None:
    # The second bytes are there in time and wait for the client until 9; it goes on from there.
    playback = await follow(metrics, [(1.0, 0.5), (1.4, 9.0, 1.0), (9.4, 1.5)])
    assert playback.underruns == 0
    late = await follow(metrics, [(1.0, 0.5), (1.75, 9.0, 1.0), (9.5, 1.5)])
    assert late.underruns == 1
    assert late.underrun_s == pytest.approx(0.25)


@pytest.fixture(name="lines")
def _lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()
    setup_logging("info", True, "gateway", "test", "0", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])


@pytest.mark.parametrize("breaks", [False, True])
async def test_what_was_measured_is_told_at_the_end(
    metrics: Metrics, lines: Callable[[], list[dict[str, Any]]], breaks: bool
) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Tracing(provider.get_tracer("test")).span(names.SPAN_REQUEST), suppress(StageFailed):
        await follow(metrics, [(1.0, 0.5), (1.75, 1.0)], breaks=breaks)
    (span,) = exporter.get_finished_spans()
    told = {"audio_s": 1.0, "first_audio_s": 1.0, "underruns": 1, "underrun_s": 0.25}
    assert span.attributes is not None
    assert {name: span.attributes[f"omnistage.{name}"] for name in told} == told
    (line,) = lines()
    assert {name: line[name] for name in told} == told
    assert (line["event"], line["request_id"], line["model"], line["streamed"]) == ("audio_sent", "r1", MODEL, True)


async def test_nothing_is_told_of_a_request_without_sound(
    metrics: Metrics, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    await follow(metrics, [(1.0, 0.0)])
    assert lines() == []


async def test_an_answer_in_one_piece_cannot_run_dry(metrics: Metrics) -> None:
    await follow(metrics, [(1.0, 0.5), (9.0, 1.0)], streamed=False)
    assert measured(metrics, names.CLIENT_UNDERRUNS) == 0
    assert measured(metrics, names.AUDIO_SECONDS) == 1.0


async def test_real_time_factor_only_of_streams_with_sound(metrics: Metrics) -> None:
    (await follow(metrics, [])).ended()
    assert measured(metrics, names.REAL_TIME_FACTOR) == 0
    (await follow(metrics, [(1.0, 4.0)])).ended()
    assert measured(metrics, names.REAL_TIME_FACTOR) == 1
    total = metrics.registry.get_sample_value(
        "omnistage_real_time_factor_sum", {"stage": "gateway", "instance": "test", "model": MODEL}
    )
    assert total == pytest.approx(0.25)
