"""Streams and consumers as values."""

from __future__ import annotations

import pytest

from omnistage.subjects import WORK
from omnistage.transport import BusOptions, Topology
from omnistage.transport.memory.bus import matches
from omnistage.transport.topology import differs, version_of

OPTIONS = BusOptions()


def test_stages_are_a_set() -> None:
    one = Topology.of("omni", [("talker", "b"), ("codec", "a"), ("talker", "b")])
    assert one == Topology.of("omni", [("codec", "a"), ("talker", "b")])
    assert one.stages == (("codec", "a"), ("talker", "b"))


def test_streams_capture_disjoint_subjects() -> None:
    streams = Topology.of("omni", []).streams(OPTIONS)
    assert [stream["name"] for stream in streams] == ["OMNI_WORK", "OMNI_FEED", "OMNI_OUT", "OMNI_DEAD"]
    captured = [subject for stream in streams for subject in stream["subjects"]]
    republished = [stream["republish"]["dest"] for stream in streams if "republish" in stream]
    assert len(set(captured + republished)) == 6
    for live in republished:
        assert not any(matches(subject.split("."), live.replace(">", "x").split(".")) for subject in captured)


def test_filters_of_the_consumers_do_not_overlap() -> None:
    topology = Topology.of("omni", [("talker", "a"), ("talker", "a-b"), ("codec", "a"), ("thinker", "a")])
    consumers = topology.consumers(OPTIONS)
    assert {consumer.stream for consumer in consumers} == {topology.subjects.stream(WORK)}
    assert len({consumer.name for consumer in consumers}) == 4
    for stage, model in topology.stages:
        subject = topology.subjects.work(stage, model, "r1").split(".")
        hits = [c.name for c in consumers if matches(c.body["filter_subject"].split("."), subject)]
        assert hits == [f"{stage}-{model}"]


@pytest.mark.parametrize(
    ("wanted", "existing", "expected"),
    [
        ({"max_msgs": 5}, {"max_msgs": 5, "added_by_the_broker": 1}, False),
        ({"max_msgs": 5}, {"max_msgs": 6}, True),
        ({"max_msgs": 5}, {}, True),
        ({"max_age": 0}, {}, False),
        ({}, {"max_age": 5}, False),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "1", "_nats.level": "2"}}, False),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}, True),
        ({"metadata": {"a": "1"}}, {"metadata": None}, True),
    ],
)
def test_differs_looks_at_what_we_set(wanted: dict[str, object], existing: dict[str, object], expected: bool) -> None:
    assert differs(wanted, existing) is expected


def test_version_of_what_others_made_is_zero() -> None:
    assert version_of({}) == 0
    assert version_of({"metadata": {"omnistage-topology": "new"}}) == 0
    assert version_of({"metadata": {"omnistage-topology": "12"}}) == 12


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.b", "a.c", False),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
    ],
)
def test_wildcards(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern.split("."), subject.split(".")) is expected
