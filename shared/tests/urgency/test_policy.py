"""Who runs dry when, as tables; and that nobody starves, whatever the others do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.urgency import Patience, Reading, Urgency

PATIENCE = Patience(start_s=0.5, whole_s=4.0, batch_s=30.0)


def urgency(reading: Reading = "stream", *, now: float = 0.0, begun: bool = False) -> Urgency:
    return Urgency(reading, now=now, begun=begun, patience=PATIENCE)


@pytest.mark.parametrize(
    ("reading", "begun", "due"),
    [
        ("stream", False, 10.5),
        ("stream", True, 10.0),
        ("whole", False, 14.0),
        ("whole", True, 14.0),
        ("batch", False, 40.0),
        ("batch", True, 40.0),
    ],
)
def test_before_anything_is_made_patience_counts(reading: Reading, begun: bool, due: float) -> None:
    assert urgency(reading, now=10.0, begun=begun).due == due


@pytest.mark.parametrize(
    ("made", "due"),
    [
        pytest.param([(0.1, 1.0)], 1.1, id="playing starts when the first leaves, not when patience ends"),
        pytest.param([(0.1, 1.0), (0.2, 2.0)], 3.1, id="what is made early adds to what is in hand"),
        pytest.param([(0.1, 1.0), (3.0, 1.0)], 4.0, id="a client that ran dry waits and goes on"),
        pytest.param([(0.1, 1.0), (3.0, 1.0), (3.5, 0.25)], 4.25, id="and does not catch up"),
        pytest.param([(0.2, 0.0)], 0.5, id="nothing made starts nothing"),
        pytest.param([(7.0, 1.0)], 8.0, id="a late start"),
    ],
)
def test_a_stream_is_due_when_it_has_played_what_it_got(made: list[tuple[float, float]], due: float) -> None:
    stream = urgency()
    for now, seconds in made:
        stream.made(seconds, now)
    assert stream.due == pytest.approx(due)


def test_a_stream_that_changed_hands_is_dry_until_more_comes() -> None:
    stream = urgency(now=10.0, begun=True)
    stream.made(1.0, 10.2)
    assert stream.due == pytest.approx(11.2)


@pytest.mark.parametrize(("reading", "due"), [("whole", 9.0), ("batch", 35.0)])
def test_those_that_cannot_run_dry_get_a_turn_for_each_patience(reading: Reading, due: float) -> None:
    answer = urgency(reading)
    answer.made(60.0, 5.0)
    assert answer.due == due


def test_a_turn_without_a_result_puts_a_late_request_behind_those_that_are_late_for_longer() -> None:
    late, later = urgency(now=0.0), urgency(now=1.0)
    late.turn(3.0)
    assert (late.due, later.due) == (3.0, 1.5)
    early = urgency(now=3.0)
    early.turn(3.1)
    assert early.due == 3.5, "a turn before its time costs nothing"


@pytest.mark.parametrize(
    ("what", "order"),
    [
        # At 10 s: a has 0.2 s in hand, b 2 s, c 8 s; new came at 9.8; whole waits since 8, batch since 5.
        ({}, ["a", "new", "b", "whole", "c", "batch"]),
        ({"whole": 6.0}, ["whole", "a", "new", "b", "c", "batch"]),
        ({"batch": -20.5}, ["batch", "a", "new", "b", "whole", "c"]),
    ],
)
def test_the_order_of_all_kinds(what: dict[str, float], order: list[str]) -> None:
    came = {"whole": 8.0, "batch": 5.0} | what
    requests = {name: urgency(now=0.0) for name in "abc"}
    for name, seconds in (("a", 10.2), ("b", 12.0), ("c", 18.0)):
        requests[name].made(seconds, 0.0)
    requests["new"] = urgency(now=9.8)
    requests["whole"] = urgency("whole", now=came["whole"])
    requests["batch"] = urgency("batch", now=came["batch"])
    assert sorted(requests, key=lambda name: requests[name].due) == order


def test_patience_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        Patience(start_s=-0.1)


kinds = st.sampled_from(["stream", "whole", "batch"])
others = st.lists(
    st.tuples(kinds, st.booleans(), st.lists(st.floats(0.0, 20.0), min_size=1, max_size=4)), min_size=1, max_size=8
)


@given(kind=kinds, others=others, costs=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=8))
def test_nobody_starves(kind: Reading, others: list[tuple[Reading, bool, list[float]]], costs: list[float]) -> None:
    """One server, everybody always wants the next turn; the others make whatever they like with theirs."""
    watched = urgency(kind)
    requests = [urgency(reading, begun=begun) for reading, begun, _ in others]
    now, turns = 0.0, 0
    passed = [0] * len(requests)
    while True:
        first = min(range(len(requests)), key=lambda index: (requests[index].due, index))
        if watched.due < requests[first].due:
            break
        if now > watched.due:
            passed[first] += 1
        requests[first].turn(now)
        makes = others[first][2]
        now += costs[turns % len(costs)]
        requests[first].made(makes[turns % len(makes)], now)
        turns += 1
        assert turns < 100_000
    assert max(passed) <= 1


@given(others=others)
def test_turns_that_make_nothing_starve_nobody(others: list[tuple[Reading, bool, list[float]]]) -> None:
    watched = urgency("whole")
    requests = [urgency(reading, begun=begun) for reading, begun, _ in others]
    now, turns = 0.0, 0
    while (first := min(requests, key=lambda request: request.due)).due <= watched.due:
        now += 0.25
        first.turn(now)
        turns += 1
        assert turns < 40 * (len(requests) + 1)
