"""The registry is sound, and everything in it is recorded and exported as it says."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from omnistage.observability import Metrics, names


def test_names_are_unique_and_say_their_unit() -> None:
    exposed = [metric.exposed for metric in names.METRICS]
    assert len(set(exposed)) == len(exposed) > 40
    for metric in names.METRICS:
        assert re.fullmatch(r"omnistage_[a-z_]+", metric.name)
        assert not metric.name.endswith("_total"), "Prometheus adds it"
        assert metric.help.endswith(".")
        if metric.unit in ("seconds", "bytes"):
            assert metric.name.endswith("_" + metric.unit), f"{metric.name} does not say its unit"
        assert not set(metric.labels) & set(names.FIXED_LABELS)


def test_buckets_grow() -> None:
    for metric in names.METRICS:
        if isinstance(metric, names.Histogram):
            assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name


@pytest.mark.parametrize(("stage", "others"), [("gateway", "stage"), ("thinker", "gateway"), ("codec", "gateway")])
def test_a_service_exports_exactly_what_it_owns_even_before_it_happens(stage: str, others: str) -> None:
    text = Metrics(stage, "one").render().decode()
    shown = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    assert {metric.exposed for metric in names.METRICS if metric.owner != others} <= shown
    assert not {metric.exposed for metric in names.METRICS if metric.owner == others} & shown


def test_values_carry_the_fixed_labels() -> None:
    metrics = Metrics("codec", "codec-1", "1.2.3")
    metrics.add(names.FRAMES, 3, model="wave")
    metrics.add(names.FRAMES, model="wave")
    metrics.set(names.SLOTS, 8, model="wave")
    metrics.adjust(names.SLOTS, -2, model="wave")
    metrics.observe(names.HOP_SECONDS, 0.0004, edge="talker-codec")
    text = metrics.render().decode()
    assert 'omnistage_frames_total{instance="codec-1",model="wave",stage="codec"} 4.0' in text
    assert "_created" not in text
    assert 'omnistage_slots{instance="codec-1",model="wave",stage="codec"} 6.0' in text
    assert 'omnistage_build_info{instance="codec-1",model="",stage="codec",version="1.2.3"} 1.0' in text
    assert metrics.value(names.FRAMES, model="wave") == 4
    assert metrics.value(names.HOP_SECONDS, edge="talker-codec") == 1
    assert metrics.value(names.FRAMES, model="other") == 0
    assert metrics.total(names.FRAMES) == 4


def test_a_watched_gauge_is_read_when_it_is_scraped() -> None:
    metrics, value = Metrics("codec", "one"), [1.0]
    metrics.watch(names.ARENA_USED, lambda: value[0])
    assert metrics.value(names.ARENA_USED) == 1
    value[0] = 7
    assert metrics.value(names.ARENA_USED) == 7


def test_recording_what_another_service_owns_is_refused() -> None:
    with pytest.raises(KeyError):
        Metrics("codec", "one").add(names.REFUSALS, code="queue_full")


@pytest.mark.parametrize("labels", [{}, {"kind": "prompt", "more": "x"}, {"sort": "prompt"}])
def test_wrong_labels_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="label"):
        Metrics("thinker", "one").add(names.TOKENS, 1, **labels)


def test_two_services_fit_into_one_process() -> None:
    first, second = Metrics("codec", "a"), Metrics("codec", "b")
    first.add(names.FRAMES)
    assert (first.value(names.FRAMES), second.value(names.FRAMES)) == (1, 0)


def test_threads_lose_no_count() -> None:
    metrics = Metrics("codec", "one")

    def count(_: int) -> None:
        for _ in range(500):
            metrics.add(names.FRAMES)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert metrics.value(names.FRAMES) == 2000


def test_span_and_attribute_names_are_listed() -> None:
    spans = {value for key, value in vars(names).items() if key.startswith("SPAN_")}
    attributes = {value for key, value in vars(names).items() if key.startswith("ATTR_")}
    assert spans == set(names.SPANS)
    assert attributes == set(names.ATTRIBUTES)
