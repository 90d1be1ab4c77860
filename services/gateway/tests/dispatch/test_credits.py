"""Several gateways divide the slots of an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_gateway.dispatch.credits import MEMORY_S, MOST_TENANTS, Demand, Grant, divide, fair


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_measured_and_what_ceased_is_forgotten() -> None:
    clock = Clock()
    demand = Demand(clock)
    for _ in range(600):
        clock.now += 0.1
        demand.came(("e", "f"), "a")
    assert demand.rates()["e"]["a"] == pytest.approx(10.0, rel=0.05)
    assert demand.rates()["f"] == demand.rates()["e"]
    clock.now += MEMORY_S * 10
    assert demand.rates() == {}


def test_only_the_busiest_keys_are_told() -> None:
    demand = Demand(Clock())
    for number in range(MOST_TENANTS + 20):
        demand.came(("e",), f"t{number}")
    demand.came(("e",), f"t{MOST_TENANTS + 19}")
    told = demand.rates()["e"]
    assert len(told) == MOST_TENANTS
    assert max(told, key=lambda name: told[name]) == f"t{MOST_TENANTS + 19}"


def test_fair_parts_are_max_min() -> None:
    assert fair({"a": 10.0, "b": 1.0, "c": 10.0}, 9.0) == {"b": 1.0, "a": 4.0, "c": 4.0}
    assert fair({"a": 2.0, "b": 1.0}, 9.0) == {"b": 1.0, "a": 2.0}


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ({"x": {}, "y": {}}, {"x": 4, "y": 4}),
        ({"x": {"a": 30.0}, "y": {"a": 30.0}}, {"x": 4, "y": 4}),
        ({"x": {"a": 60.0}, "y": {}}, {"x": 7, "y": 1}),
        ({"x": {"a": 48.0}, "y": {"a": 16.0}}, {"x": 6, "y": 2}),
        # One key floods a gateway that is its own, another is as fair there as elsewhere.
        ({"x": {"a": 60.0}, "y": {"b": 20.0}}, {"x": 4, "y": 4}),
        ({"x": {"a": 60.0, "b": 10.0}, "y": {"b": 10.0}}, {"x": 6, "y": 2}),
        # No overload: what is not needed is divided equally.
        ({"x": {"a": 3.0}, "y": {"b": 1.0}}, {"x": 5, "y": 3}),
        ({"x": {"a": 0.1}, "y": {}}, {"x": 4, "y": 4}),
    ],
)
def test_slots_follow_what_comes_fair_between_keys(wanted: dict[str, dict[str, float]], parts: dict[str, int]) -> None:
    assert divide(8, wanted) == parts


@given(
    st.integers(0, 40),
    st.dictionaries(
        st.sampled_from("vwxyz"), st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 100)), min_size=1
    ),
)
def test_all_slots_are_given_once_and_everybody_has_one(slots: int, wanted: dict[str, dict[str, float]]) -> None:
    parts = divide(slots, wanted)
    assert parts.keys() == wanted.keys()
    assert sum(parts.values()) == (max(slots, len(wanted)) if slots else 0)
    assert min(parts.values()) >= min(slots, 1)
    assert divide(slots, dict(reversed(wanted.items()))) == parts, "whoever computes it"


def test_a_part_shrinks_at_once_and_grows_later() -> None:
    clock = Clock()
    grant = Grant(clock)
    assert grant.use(4, 8, 2.0) == 4
    assert grant.use(6, 8, 2.0) == 4
    assert grant.use(3, 8, 2.0) == 3
    clock.now += 1.9
    assert grant.use(6, 8, 2.0) == 3
    clock.now += 0.2
    assert grant.use(6, 8, 2.0) == 6
    assert grant.use(12, 16, 2.0) == 12, "slots that are new were nobody's"
    assert grant.use(0, 0, 2.0) == 0
